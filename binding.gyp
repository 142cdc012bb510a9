{
  "targets": [
    {
      "target_name": "zerotx",
      "sources": [
        "native/module.c",
        "native/args.c",
        "native/socket.c",
        "native/data.c",
        "native/datagram.c",
        "native/reactor.c",
        "native/slab.c",
        "native/process.c",
        "native/probe.c"
      ],
      "defines": ["NAPI_VERSION=8", "_GNU_SOURCE"],
      "cflags": ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"],
      "ldflags": ["-Wl,-z,nodelete"]
    }
  ]
}
