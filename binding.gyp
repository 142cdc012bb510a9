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
        "native/rds.c",
        "native/reactor.c",
        "native/slab.c",
        "native/process.c",
        "native/probe.c",
        "native/fds.c",
        "native/signal.c",
        "native/tap.c",
        "native/privileges.c",
        "native/space.c",
        "native/behind.c",
        "native/sigbus.c",
        "native/frames.c",
        "native/frames-copy.c",
        "native/frames-io.c"
      ],
      "defines": ["NAPI_VERSION=8", "_GNU_SOURCE"],
      "cflags": ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"],
      "ldflags": ["-Wl,-z,nodelete"]
    }
  ]
}
