#!/usr/bin/python3 -IS
"""Run a command for which a system call fails, as on file systems that lack it.

    deny_call.py CALL ERRNO COMMAND...

A seccomp filter answers in place of the kernel, for the command and all it starts.
x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2  # <linux/prctl.h>, <linux/seccomp.h>
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NUMBER_AT = 0  # in struct seccomp_data
CALLS = {
    "x86_64": {"bind": (49,), "flock": (73,), "link": (86, 265), "renameat2": (316,)},
    "aarch64": {"bind": (200,), "flock": (32,), "link": (37,), "renameat2": (276,)},
}


def deny(numbers: tuple[int, ...], code: int) -> None:
    """Let these system calls fail with `code` from now on."""
    checks = [(EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    program = (
        (LOAD, 0, 0, NUMBER_AT),
        *checks,
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, FAIL | code),
    )
    raw = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    head = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(raw))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, head):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


if __name__ == "__main__":
    deny(CALLS[os.uname().machine][sys.argv[1]], getattr(errno, sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
