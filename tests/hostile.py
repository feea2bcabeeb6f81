"""Input that nobody would write by hand, from a seed: texts, JSON, bytes, names, things for files.

A short run takes the same seed every time; a long one (LONG) another one each time.  SEED_NAME in
the environment repeats a run, and a failure names it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

LONG_NAME = "PERSISTENT_SESSIONS_TESTS_LONG"
SEED_NAME = "PERSISTENT_SESSIONS_TESTS_SEED"
LONG = os.environ.get(LONG_NAME, "") not in ("", "0")
SEED = os.environ.get(SEED_NAME) or (str(time.time_ns()) if LONG else "1")

CANARY = "canary"  # what a command that was let in would make, in the folder it runs in or in HOME
COMMAND = f"touch $HOME/{CANARY}"
NOBODY = 65534  # an account that is not ours, when we are root

SCALARS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 10**4200, 0.5, -0.0, 1e-320,
    float("nan"), float("inf"), float("-inf"), "", " ", "-", "0", "-1", "1e400", "nan",
    "9" * 5000, "\u00b2", "\u0663",
)  # fmt: skip
TEXTS = (
    "", " ", "-", "--", "--help", "-x", "--version", ".", "..", "/", "//", "../../" + CANARY,
    "/dev/null", "~", "$HOME", f"$({COMMAND})", f"`{COMMAND}`", f"; {COMMAND}", f"'; {COMMAND}; '",
    f"x\n{COMMAND}\n", f"#({COMMAND})", f"#{{E:#({COMMAND})}}", f"| {COMMAND}", "#{session_name}",
    "#{", "%1", "$0", "@0", "=x", "x:", "x.1", ":", "=", "{}", "[]", "%s%n", "%%", "\\", '"', "'",
    "\0", "a\0b", "\n", "\r", "\r\n", "\t", "\v\f", "\x1b[31m", "\x1b]0;t\x07", "\x1bP0\x1b\\",
    "\x9b31m", "\x07", "\x08" * 9, "\x7f", "\x85", "\u2028", "\u202e", "\u2066x\u2069", "\ufeff",
    "\ud800", "\udcff", "\udfff\ud800", "\ue000", "\ue0001\ue001", "\U000e0001", "\U0010ffff",
    "e\u0301", "\u0130", "\ufdfa" * 40, "x" * 70, "x" * 300, "\u65e5" * 90, "a" * 100000,
    "None", "null", "NaN", "yes", "1", "0x10", "/tmp", "a=b", "#", "# x", "- - -", "a\tb",
    "--output=" + CANARY, "--upload-pack=" + COMMAND, "-oProxyCommand=" + COMMAND, "--resume",
)  # fmt: skip
RANGES = ((0, 32), (32, 127), (127, 0x250), (0x2000, 0x2070), (0xD800, 0x10000), (0, 0x10FFFF))
PIECES = (
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\r\n", b"\n", b"\t",
    b"\r", b"\x1b[2J", b"\x9b", b"\xc2\x85", b"\xe2\x80\xa8", b'"', b"\\", b"{", b"}", b"[", b"]",
    b",", b":", b"=", b"-", b"#", b"'", b"\\u0000", b"\\ud800", b"1e999", b"NaN", b" " * 70,
)  # fmt: skip


class Maker:
    """One stream of hostile things; the same seed and label make the same stream."""

    def __init__(self, label: str) -> None:
        self.random = random.Random(f"{SEED} {label}")
        self.made: list[object] = []  # to be shown when the case fails

    def one(self, *choices: T) -> T:
        return self.random.choice(choices)

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    # ---- Texts and values

    def text(self) -> str:
        """Return a text: a known bad one, several of them, or any code points."""
        how = self.random.randrange(10)
        if how < 6:
            return self.random.choice(TEXTS)
        if how < 8:
            return "".join(self.random.choice(TEXTS)[:200] for _ in range(3))
        size = self.random.randrange(1, 30)
        return "".join(chr(self.random.randint(*self.one(*RANGES))) for _ in range(size))

    def deep(self, depth: int = 0) -> Any:
        """Return something nested as deeply as this interpreter can build and write it."""
        value: Any = "x"
        lists = self.chance(50)
        for _ in range(depth or self.one(5, 90, 300)):
            value = [value] if lists else {"a": value}
        return value

    def value(self, depth: int = 2) -> Any:
        """Return a value of any type that JSON knows."""
        how = self.random.randrange(12 if depth else 7)
        if how < 3:
            return self.random.choice(SCALARS)
        if how < 6:
            return self.text()
        if how == 6:
            return self.deep()
        count = self.random.randrange(4)
        if how < 9:
            return [self.value(depth - 1) for _ in range(count)]
        return {self.text(): self.value(depth - 1) for _ in range(count)}

    def change(self, value: Any) -> Any:
        """Return a copy of a JSON value with something in it replaced, added or taken away."""
        if self.chance(25) or not isinstance(value, (dict, list)) or not value:
            return self.value()
        if isinstance(value, list):
            at = self.random.randrange(len(value))
            return [*value[:at], self.change(value[at]), *value[at + 1 :]]
        key, how = self.random.choice(list(value)), self.random.randrange(10)
        if how == 0:
            return {k: v for k, v in value.items() if k != key}
        if how == 1:
            return {**value, self.text(): self.value()}
        return {**value, key: self.change(value[key])}

    # ---- Bytes

    def bytes_of(self, value: Any) -> bytes:
        """Return a JSON text of a value, in one of the ways to write it."""
        text = json.dumps(value, ensure_ascii=self.chance(60), indent=self.one(None, 1, 2))
        if self.chance(10) and text.startswith("{") and len(text) > 2:
            text = f"{text[:-1]}, {text[1:]}"  # every key twice
        if self.chance(8):
            deep = self.one(200, 950, 1100, 5000, 100000)
            text = text.replace('"', '"' + self.one("[", '{"a":') * deep, 1)
        if self.chance(8):
            pair = self.one(("[", "]"), ('{"a":', "}"))
            deep = self.one(200, 900, 960, 985, 995, 1100, 5000, 100000)
            inner = f'"x": {pair[0] * deep}1{pair[1] * deep}'
            text = f"{{{inner}, {text[1:]}" if text.startswith("{") and len(text) > 2 else text
        if self.chance(5):
            text = text.replace(": ", ":" + " " * 100000, 1)
        return text.encode("utf-8", "surrogatepass")

    def json(self, value: Any) -> bytes:
        """Return a JSON text near that of a value, mostly one that parses."""
        for _ in range(self.random.randrange(3)):
            value = self.change(value)
        raw = self.bytes_of(value)
        return self.noted(self.damage(raw) if self.chance(35) else raw)

    def noted(self, thing: T) -> T:
        """Remember what a case was made of and return it."""
        self.made = [*self.made[-7:], thing]
        return thing

    def damage(self, raw: bytes) -> bytes:
        """Return bytes near `raw`: cut, doubled, with pieces put in, in another encoding, empty."""
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(raw) + 1)
            to = min(len(raw), at + self.random.randrange(1, 12))
            piece = self.one(self.random.choice(PIECES), self.random.randbytes(3), self.line())
            how = self.random.randrange(14)
            if how < 5:
                raw = raw[:at] + piece + raw[at:]
            elif how < 8:
                raw = raw[:at] + piece + raw[to:]
            elif how == 8:
                raw = raw[:at]
            elif how == 9:
                raw = raw[:at] + raw[to:]
            elif how == 10:
                raw = b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n")
            elif how == 11:
                raw = self.one(raw.rstrip(b"\n"), raw + raw, raw.replace(b"\n", b"\r"))
            elif how == 12:
                raw = self.one(b"", b"\0" * len(raw), b"\n" * 3, self.random.randbytes(200))
            else:
                codec = self.one("utf-16", "utf-32", "latin-1")
                raw = raw.decode("utf-8", "replace").encode(codec, "replace")
        return raw

    def line(self) -> bytes:
        return self.text().encode("utf-8", "surrogatepass")

    def fields(self, raw: bytes) -> bytes:
        """Return bytes near a text of fields: one field, or several, replaced."""
        lines = raw.split(b"\n")
        for _ in range(self.random.randrange(1, 3)):
            at = self.random.randrange(len(lines))
            for mark in (b"\t", b"="):
                if mark in lines[at]:
                    words = lines[at].split(mark)
                    words[self.random.randrange(len(words))] = self.line()
                    lines[at] = mark.join(words)
                    break
        raw = b"\n".join(lines)
        return self.noted(self.damage(raw) if self.chance(30) else raw)

    # ---- Things in the place of a file

    def put(self, path: str, raw: bytes, outside: str) -> str:
        """Leave `raw`, or something that is no such file, at a path; return what it is."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        kind = self.random.choice(KINDS) if self.chance(25) else "file"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        make(kind, path, raw, outside)
        return kind


def make(kind: str, path: str, raw: bytes, outside: str) -> None:
    """Make one of KINDS at a path; links lead into the folder `outside`."""
    if kind in ("file", "foreign", "closed"):
        with open(path, "wb") as f:
            f.write(raw)
        if kind == "foreign":
            os.chown(path, NOBODY, NOBODY)
        if kind == "closed":
            os.chmod(path, 0)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            here = os.open(os.path.dirname(path), os.O_RDONLY)
            s.bind(f"/proc/self/fd/{here}/{os.path.basename(path)}"[:107])
            os.close(here)
    elif kind.startswith("/dev/"):
        os.symlink(kind, path)
    else:
        target = {"loop": path, "dangling": f"{outside}/nothing"}.get(kind, f"{outside}/kept")
        os.symlink(target, path)
        if kind == "foreign link":
            os.lchown(path, NOBODY, NOBODY)


OWN_KINDS = ("folder", "fifo", "socket", "link", "dangling", "loop", "closed", "/dev/zero",
             "/dev/full", "/dev/tty")  # fmt: skip
KINDS = (*OWN_KINDS, "foreign", "foreign link") if os.getuid() == 0 else OWN_KINDS


# ---- Running many cases ------------------------------------------------------


class Case(NamedTuple):
    """One case of a run: its number and its stream."""

    number: int
    make: Maker


def cases(label: str, short: int, seconds: float) -> Iterator[Case]:
    """Yield cases: `short` of them, or in a long run as many as `seconds` times 20 allow."""
    end = time.monotonic() + (seconds * 20 if LONG else seconds)
    number = 0
    while time.monotonic() < end and (LONG or number < short):
        yield Case(number, Maker(f"{label} {number}"))
        number += 1
    print(f"{label}: {number} cases")


@contextlib.contextmanager
def named(label: str, case: Case) -> Iterator[None]:
    """Have a failure inside name the seed, the case, and what was put in."""
    try:
        yield
    except Exception as e:
        shown = "\n".join(f"  {each!r:.3000}" for each in case.make.made)
        raise AssertionError(
            f"{type(e).__name__}: {e}\n{SEED_NAME}={SEED} {label} case {case.number}\n{shown}"
        ) from e


def quickly(act: Callable[[], T], limit: float = 10.0) -> T:
    """Return what a function returns; it may not take longer than `limit`."""
    began = time.monotonic()
    result = act()
    took = time.monotonic() - began
    assert took < limit, f"it took {took:.1f} s"
    return result


def raw_controls(text: str) -> str:
    """Return the characters of a text that would steer a terminal or turn what it shows."""
    return "".join(sorted({c for c in text if not c.isprintable() and c != "\n"}))
