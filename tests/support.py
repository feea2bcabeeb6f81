"""What the tests share: waiting, private machines of one test, programs, terminals.

Nothing here knows what the programs under test mean; it only runs them and watches.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

TESTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(TESTS)
SESSIONS = os.path.join(ROOT, "persistent_sessions.py")
ADOPT = os.path.join(ROOT, "task_adopt.py")

# A skip with this word in front is one that no set-up of ours could avoid (see conftest.py).
ABSENT = "absent here: "

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 10.0) -> T:
    """Ask `predicate` until its answer is true; return the last answer, true or not."""
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        answer = predicate()
        left = deadline - time.monotonic()
        if answer or left <= 0:
            return answer
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.2)


# ---- Processes ------------------------------------------------------------


def start_time(pid: int) -> str:
    """Return the kernel's start time of `pid`, "" when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def alive(pid: int) -> bool:
    return start_time(pid) != ""


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment `pid` was started with; {} when it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            entries = f.read().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(e.split("=", 1) for e in entries if "=" in e)


def pids_marked(name: str, value: str) -> set[int]:
    """Return the processes whose environment holds `name` with `value`, ourselves not counted."""
    pids = (int(p) for p in os.listdir("/proc") if p.isdigit())
    return {p for p in pids if p != os.getpid() and environment_of(p).get(name) == value}


def end_processes(pids: Iterable[int], patience: float = 3.0) -> None:
    """Wait for `pids` to end, then kill those that do not; a reused pid is left alone."""
    born = {p: start_time(p) for p in pids}
    left = [p for p in born if born[p]]
    wait_until(lambda: not any(start_time(p) == born[p] for p in left), patience)
    for pid in left:
        if start_time(pid) == born[pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the JSON lines of a file, [] when there is none; one just being written waits."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as f:
        whole = f.read().split(b"\n")[:-1]
        return [json.loads(line) for line in whole if line.strip(b"\0 ")]
    return []


# ---- Programs -------------------------------------------------------------


class Program:
    """One of our two programs, run the way its first line says, without a controlling terminal."""

    def __init__(self, script: str) -> None:
        self.argv = [sys.executable, "-IS", script]
        self.started: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; `env` is added to the test's own environment."""
        return subprocess.run(
            [*self.argv, *map(str, args)],
            env={**os.environ, **(env or {})},
            cwd=cwd,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            start_new_session=True,
        )

    def start(self, *args: str, env: Mapping[str, str] | None = None, **how: Any) -> Any:
        """Start it and return the Popen (text pipes unless `how` says otherwise)."""
        how.setdefault("stdin", subprocess.DEVNULL)
        how.setdefault("stdout", subprocess.PIPE)
        how.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen(
            [*self.argv, *map(str, args)],
            env={**os.environ, **(env or {})},
            encoding="utf-8",
            errors="surrogateescape",
            start_new_session=True,
            **how,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill what was started and still runs."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()


# ---- Terminals ------------------------------------------------------------

# CSI sequences, OSC strings, character set choices and other two-byte escapes.
ESCAPES = re.compile(
    r"\x1b\[[0-9:;<=>?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Za-z]|\x1b[ -~]"
)


class Size(NamedTuple):
    rows: int
    columns: int


class Terminal:
    """A command on a real pseudo-terminal, as a person would have it on the screen."""

    def __init__(
        self,
        *argv: str,
        size: tuple[int, int] = (24, 80),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.raw = b""
        self.seen = 0
        self.master, slave = os.openpty()
        self.resize(*size)

        def enter() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [str(a) for a in argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=enter,
        )
        os.close(slave)

    @property
    def pid(self) -> int:
        return self.process.pid

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells its foreground group."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, keys: str) -> None:
        """Type `keys`, byte for byte (a carriage return is the Enter key)."""
        os.write(self.master, keys.encode("utf-8", "surrogateescape"))

    def pump(self, timeout: float = 0.0) -> bool:
        """Take in what has arrived; wait up to `timeout` for the first byte."""
        got = False
        while select.select([self.master], [], [], 0.0 if got else timeout)[0]:
            try:
                chunk = os.read(self.master, 65536)
            except OSError:  # EIO: the last process has closed the other side
                return got
            if not chunk:
                return got
            self.raw += chunk
            got = True
        return got

    def text(self) -> str:
        """Return everything written so far without its escape sequences."""
        self.pump()
        return ESCAPES.sub("", self.raw.decode("utf-8", "replace")).replace("\r\n", "\n")

    def expect(self, wanted: str, timeout: float = 10.0) -> str:
        """Wait for `wanted` after the last thing expected; return what came before it."""
        deadline = time.monotonic() + timeout
        while True:
            text = self.text()
            at = text.find(wanted, self.seen)
            if at >= 0:
                before = text[self.seen : at]
                self.seen = at + len(wanted)
                return before
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{wanted!r} did not come in {timeout:g} s: {text[-2000:]!r}")
            if not self.pump(min(left, 0.1)) and self.process.poll() is not None:
                deadline = min(deadline, time.monotonic() + 0.2)

    def wait(self, timeout: float = 10.0) -> int:
        """Return the command's status; it is -N when signal N ended it."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            self.pump(0.02)  # a full terminal would block the command for ever
            if time.monotonic() > deadline:
                raise AssertionError(f"still running after {timeout:g} s: {self.text()[-2000:]!r}")
        self.pump()
        return self.process.returncode

    def hang_up(self) -> None:
        """Close the terminal, as a lost connection or a closed window does."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def end(self) -> None:
        self.hang_up()
        end_processes([self.pid], 2.0)
        self.process.wait()


# ---- tmux -----------------------------------------------------------------


def sockets_below(folder: str) -> list[str]:
    """Return the unix sockets in `folder` and its folders."""
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            with contextlib.suppress(OSError):
                if os.path.exists(full) and (os.lstat(full).st_mode & 0o170000) == 0o140000:
                    found.append(full)
    return found


def run_tmux(*args: str, timeout: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Run a tmux client; text in, text out, no controlling terminal."""
    return subprocess.run(
        ["tmux", "-u", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=timeout,
        start_new_session=True,
    )


def tmux_pids(socket: str) -> set[int]:
    """Return the pids of the server at `socket` and of its panes; empty when nothing answers."""
    done = run_tmux("-S", socket, "list-panes", "-a", "-F", "#{pid} #{pane_pid}")
    return {int(word) for word in done.stdout.split() if word.isdigit()}


def end_tmux_below(folders: Sequence[str]) -> None:
    """End every tmux server with a socket below `folders`, and what its panes ran."""
    for folder in folders:
        for socket in sockets_below(folder):
            pids = tmux_pids(socket)
            if pids:
                run_tmux("-S", socket, "kill-server")
                end_processes(pids, 1.0)
