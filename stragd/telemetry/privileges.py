"""What a reader's process gives up once it has opened its driver.

The NVIDIA driver asks for CAP_SYS_ADMIN where it wants an administrator (processes of a divided
GPU, performance counters); nothing else is needed to read on.
"""

from __future__ import annotations

import ctypes
import resource

CAP_SYS_ADMIN = 21
LINUX_CAPABILITY_VERSION_3 = 0x20080522
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4


def drop(keep: int = 1 << CAP_SYS_ADMIN) -> None:
    """Keep only the capabilities of ``keep`` that this process has, and never gain others.

    Of the calling thread and those it starts later, so call it before any other. What the kernel
    refuses stays as it was: a reader with too much is better than none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no driver memory on disk
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    for capability in range(64):
        if not keep >> capability & 1:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the upper 32 bits
    if libc.capget(header, held) != 0:
        return
    low, high = keep & 0xFFFFFFFF, keep >> 32
    left = (held[1] & low, held[4] & high)
    wanted = (ctypes.c_uint32 * 6)(left[0], left[0], 0, left[1], left[1], 0)
    libc.capset(header, wanted)
