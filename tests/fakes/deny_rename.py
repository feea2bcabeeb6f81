#!/usr/bin/python3 -IS
"""Run a command for which renameat2 with flags fails, as on file systems that lack them.

    deny_rename.py ERRNO COMMAND...

A seccomp filter answers in place of the kernel; a plain rename stays possible, so that a
program which falls back to one is found out.  x86_64 and aarch64.
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
NUMBER_AT, FLAGS_AT = 0, 16 + 4 * 8  # in struct seccomp_data, little endian
RENAMEAT2 = {"x86_64": 316, "aarch64": 276}


def deny(code: int) -> None:
    """Let every renameat2 of this process that asks for something fail with `code`."""
    program = (
        (LOAD, 0, 0, NUMBER_AT),
        (EQUAL, 0, 3, RENAMEAT2[os.uname().machine]),
        (LOAD, 0, 0, FLAGS_AT),
        (EQUAL, 1, 0, 0),
        (RETURN, 0, 0, FAIL | code),
        (RETURN, 0, 0, ALLOW),
    )
    raw = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    head = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(raw))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, head):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


if __name__ == "__main__":
    deny(getattr(errno, sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
