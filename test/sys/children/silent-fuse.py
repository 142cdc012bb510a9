# A file system that answers until its only file is open, and then never again: silent-fuse.py FILE PROGRAM [ARGUMENT ...]
# mounts it over FILE, runs the program, and ends when that has said a line, which it passes on. In a mount namespace of its own,
# as root.
import ctypes
import os
import struct
import subprocess
import sys
import threading

FUSE_GETATTR, FUSE_OPEN, FUSE_INIT = 3, 14, 26
file, program = sys.argv[1], sys.argv[2:]

device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
options = f"fd={device},rootmode=100644,user_id=0,group_id=0"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"silent", file.encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))


def serve():
    answered = True
    while answered:
        # struct fuse_in_header: len, opcode, unique, ...
        _, opcode, unique = struct.unpack_from("=IIQ", os.read(device, 1 << 20))
        if opcode == FUSE_INIT:
            body = struct.pack("=IIII", 7, 31, 0, 0) + struct.pack("=HHIIHHI", 16, 12, 65536, 1, 0, 0, 0) + bytes(28)
        elif opcode == FUSE_GETATTR:
            # Not valid for any time: whoever asks again waits.
            body = bytes(16) + struct.pack("=QQQQQQIIIIIIIIII", 1, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 512, 0)
        else:
            body = bytes(16)
            answered = opcode != FUSE_OPEN
        os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)


threading.Thread(target=serve, daemon=True).start()
with subprocess.Popen(program, stdout=subprocess.PIPE) as child:
    sys.stdout.buffer.write(child.stdout.readline())
    sys.stdout.flush()
    # Closes the device, and so ends the wait of whoever still does.
    os._exit(0)
