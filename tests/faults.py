"""Each step of a command made to fail in its turn: strace, in our own process and in no other.

A trace of a good run lists the calls that change something.  A call is named by how many of its
name came up to it, for that is what strace counts; without -f it counts in the one process, so
what the command starts (tmux, git, claude) is left alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import support

import persistent_sessions as program

STRACE = shutil.which("strace") or ""
LONG = os.environ.get("PERSISTENT_SESSIONS_TESTS_LONG", "") not in ("", "0")

KILL = "KILL"
DISK = ("ENOSPC", "EIO", "EROFS", "EINTR", KILL)
# What a call can meet; those that are not here meet a disk.
MEETS = {
    **dict.fromkeys(("clone", "clone3", "vfork", "fork"), ("EAGAIN", KILL)),
    **dict.fromkeys(("connect", "sendmsg", "sendto"), ("EPIPE", KILL)),
    "flock": ("ENOLCK", "EIO", KILL),
    "pipe": (KILL,),  # a write into one
}
CALLS = (
    "openat write pwrite64 rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat "
    "mkdir mkdirat rmdir fsync fdatasync syncfs chmod fchmod fchmodat truncate ftruncate utimensat "
    "bind connect sendmsg sendto clone clone3 vfork fork flock"
).split()
TRACE = "trace=" + ",".join(f"?{name}" for name in CALLS)
# A signal's number into the interpreter's own pipe, which no disk can refuse.
WAKEUP = re.compile(r'write\(\d+<pipe:\[\d+\]>, "\\\d+", 1\)')
MAKES = re.compile(r"O_(WRONLY|RDWR|CREAT|DIRECTORY\|O_CLOEXEC)")


class Point(NamedTuple):
    """One call that changes something."""

    call: str
    count: int  # of the calls of its name, from 1
    text: str

    @property
    def kinds(self) -> tuple[str, ...]:
        piped = re.match(r"write\((?![12]<)\d+<(pipe|socket)", self.text)
        return MEETS.get("pipe" if piped else self.call, DISK)

    def options(self, kind: str) -> list[str]:
        """Return strace's options that make this call meet its fault."""
        fault = "signal=SIGKILL" if kind == KILL else f"error={kind}"
        return ["-e", f"inject={self.call}:{fault}:when={self.count}"]

    def __str__(self) -> str:
        return f"{self.call} {self.count}: {self.text[:150]}"


def is_reading(text: str) -> bool:
    return "openat(" in text[:20] and not MAKES.search(text)


def points(trace: str, folder: str) -> Iterator[Point]:
    """Yield a trace's calls that change something below `folder`, speak, or start a process."""
    counts: dict[str, int] = {}
    for line in trace.splitlines():
        call = re.match(r"(?:\d+ +)?((\w+)\(.*)", line)
        if not call:
            continue
        text, name = call[1], call[2]
        counts[name] = counts.get(name, 0) + 1
        refused = re.search(r" = -1 E(?!INPROGRESS)", text)  # it changed nothing
        if not (is_reading(text) or WAKEUP.match(text) or refused) and (
            folder in text or name in MEETS or re.match(r"write\(", text)
        ):
            yield Point(name, counts[name], text)


def chosen(found: Sequence[Point], stride: int = 1) -> list[tuple[Point, str]]:
    """Return every point with every fault; in an ordinary run some of them, equally spread.

    Every `stride`th point is killed or meets an error in turn; of stride 1 both.
    """
    if LONG:
        return [(point, kind) for point in found for kind in point.kinds]
    some: list[tuple[Point, str]] = []
    for at, point in enumerate(found[::stride]):
        errors = [kind for kind in point.kinds if kind != KILL]
        error = errors[at // 2 % len(errors)] if errors else KILL
        wanted = (error, KILL) if stride == 1 else (KILL,) if at % 2 else (error,)
        some += [(point, kind) for kind in dict.fromkeys(wanted)]
    return some


class Ran(NamedTuple):
    """What came of a traced run."""

    status: int
    said: str  # on stderr
    trace: str

    @property
    def hit(self) -> bool:
        """Tell whether the fault came, and to a call that changes something."""
        passed = is_reading(self.fault) or WAKEUP.search(self.fault)
        return bool(self.fault) and (self.killed or not passed)

    @property
    def killed(self) -> bool:
        return "killed by SIGKILL" in self.trace

    @property
    def fault(self) -> str:
        """Return the call that failed, or the last one."""
        lines = self.trace.splitlines()
        failed = [line for line in lines if "(INJECTED)" in line]
        return failed[0] if failed else lines[-2] if self.killed else ""


def strace(trace: Path, *options: str) -> list[str]:
    """Return the command line that runs another one and writes down what it changes."""
    return [STRACE, "-q", "-y", "-s", "120", "-o", str(trace), "-e", TRACE, *options]


def traced(
    argv: Sequence[str], folder: Path, *options: str, input: str = "", cwd: Path | None = None
) -> Ran:
    """Run a command to its end under strace."""
    trace = folder / "trace"
    done = subprocess.run(
        [*strace(trace, *options), *argv],
        input=input.encode(),
        capture_output=True,
        cwd=cwd,
        timeout=60,
        start_new_session=True,
    )
    said = done.stderr.decode("utf-8", "replace")
    return Ran(done.returncode, said, trace.read_text(errors="replace"))


def read_trace(path: Path) -> str:
    """Return the trace of a process that has ended; its tracer, which is no parent, may be late."""

    def whole() -> bool:
        return "+++ " in path.read_text(errors="replace")[-200:]

    support.wait_until(whole, 5.0)
    return path.read_text(errors="replace")


# ---- Our program, compiled once -------------------------------------------


def make_door(folder: Path) -> list[str]:
    """Make a folder from which this checkout's program is imported compiled; return its start.

    A command takes a tenth of the time that way, and there are hundreds.
    """
    folder.mkdir()
    os.symlink(support.SESSIONS, folder / "persistent_sessions.py")
    compiling = "import sys,py_compile;py_compile.compile(sys.argv[1])"
    path = str(folder / "persistent_sessions.py")
    subprocess.run([program.python(), "-IS", "-c", compiling, path], check=True)
    code = f'import sys;sys.path.append("{folder}");import persistent_sessions as m;'
    return [program.python(), "-IS", "-c", f"{code}sys.exit(m.main())"]


class World:
    """A home of its own for one run, below the test's private folder; it becomes the environment.

    What the helpers in sessions.py ask for is then this world's.
    """

    def __init__(self, private: Path, name: str, door: Path | None = None) -> None:
        self.folder = private / name
        self.before = dict(os.environ)
        for part in ("home", "t", "r"):
            (self.folder / part).mkdir(0o700, parents=True)
        os.environ.update(
            {k: v.replace(str(private), str(self.folder)) for k, v in os.environ.items()}
        )
        self.home = self.folder / "home"
        self.bin = self.home / ".local/bin"
        self.bin.mkdir(parents=True)
        if door is not None:
            library = self.home / ".local/lib"
            library.mkdir()
            os.symlink(door, library / "persistent-sessions")

    def claude(self) -> None:
        os.symlink(os.path.join(support.TESTS, "fakes", "claude"), self.bin / "claude")

    def end(self) -> None:
        """End what lives in it and go back to the environment before it."""
        marked = support.pids_marked("HOME", str(self.home))
        support.end_processes(marked, 0.0)  # at once: there are hundreds of worlds
        support.end_tmux_below([str(self.folder)])
        os.environ.clear()
        os.environ.update(self.before)
        shutil.rmtree(self.folder, ignore_errors=True)


def temporaries(*folders: Path) -> list[str]:
    """Return what looks like something half done below `folders`."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            name = path.name
            if name.endswith((".tmp", ".job", ".new", ".task-adopt")) or (
                name.startswith(".task-adopt-")
            ):
                found.append(str(path))
    return found
