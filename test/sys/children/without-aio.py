# Runs a program in which io_setup(2) gives an error, by a seccomp filter: without-aio.py ERRNO PROGRAM [ARGUMENT ...]
import ctypes
import os
import platform
import struct
import sys

IO_SETUP = {"x86_64": 206, "aarch64": 0}[platform.machine()]
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2

# if (nr == IO_SETUP) return ERRNO; else return ALLOW (linux/filter.h: code, jt, jf, k)
program = b"".join(
    struct.pack("=HBBI", *one)
    for one in [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, IO_SETUP),
        (0x06, 0, 0, 0x00050000 | int(sys.argv[1])),
        (0x06, 0, 0, 0x7FFF0000),
    ]
)
filters = ctypes.create_string_buffer(program)
header = struct.pack("@HP", 4, ctypes.addressof(filters))
libc = ctypes.CDLL(None, use_errno=True)
for arguments in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)]:
    if libc.prctl(*arguments) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
