# A peer that keeps the lock of an epoll descriptor: held-epoll.py SOCKET eventfd|epoll
# The descriptor watches an eventfd, and a thread waits for it with a buffer in memory that does not come (userfaultfd), as
# another would with a file system of its own. Then the eventfd, which nobody else has, or the epoll descriptor goes over the
# socket. It ends when its input does, and the lock with it. For root: the fault is one of the kernel's.
import array
import ctypes
import os
import platform
import socket
import struct
import sys
import threading

path, what = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def checked(value):
    if value < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    return value


event = checked(libc.eventfd(0, 0o2004000))
epoll = checked(libc.epoll_create1(0o2000000))
checked(libc.epoll_ctl(epoll, 1, event, struct.pack("=IQ" if platform.machine() == "x86_64" else "=IxxxxQ", 1, 0)))
os.write(event, struct.pack("=Q", 1))

fault = checked(libc.syscall(323 if platform.machine() == "x86_64" else 282, 0o2004000))
checked(libc.ioctl(fault, 0xC018AA3F, ctypes.create_string_buffer(struct.pack("=QQQ", 0xAA, 0, 0), 24)))
page = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, 0)
checked(libc.ioctl(fault, ctypes.c_ulong(0xC020AA00), ctypes.create_string_buffer(struct.pack("=QQQQ", page, 4096, 1, 0), 32)))
threading.Thread(target=lambda: libc.epoll_wait(epoll, ctypes.c_void_p(page), 1, -1), daemon=True).start()
# The fault itself tells when the thread is in it.
os.set_blocking(fault, True)
os.read(fault, 32)

peer = socket.socket(socket.AF_UNIX)
peer.connect(path)
sent = event if what == "eventfd" else epoll
peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent]))])
if what == "eventfd":
    os.close(event)
print("sent", flush=True)
sys.stdin.read()
os._exit(0)
