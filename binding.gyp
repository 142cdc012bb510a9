{
  "targets": [
    {
      "target_name": "zerotx",
      "sources": ["native/module.c"],
      "defines": ["NAPI_VERSION=8", "_GNU_SOURCE"],
      "cflags": ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    }
  ]
}
