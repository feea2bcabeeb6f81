"""What the tests of hosted launches share: a caller's side of the handoff, played by the test."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import SESSIONS, Terminal

import persistent_sessions as program


class Pane:
    """The pane's side of one launch, on a terminal of the test and without tmux."""

    def __init__(self, *argv: str, cwd: str = "/", env: dict[str, str] | None = None) -> None:
        self.ledger = Path(os.environ["HOME"], "ledger")
        self.path = self.ledger / "spawn" / os.urandom(6).hex()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        job = program.Job(argv, cwd, os.environ if env is None else env, argv[0])
        self.folder, self.listener = program.make_handoff(str(self.path), job)
        self.conn: Any = None

    def start(self, program: Sequence[str] = (sys.executable, "-IS", SESSIONS)) -> Terminal:
        argv = (*program, "_pane", str(self.path))
        place = {"TMUX": f"{os.environ['HOME']}/none,1,0", "TMUX_PANE": "%0"}
        self.terminal = Terminal(*argv, env=place)
        return self.terminal

    def meet(self, streams: str = "", *fds: int) -> None:
        """Accept the pane and give it our descriptors in the place of 0, 1, 2."""
        self.conn = program.accept_pane(self.listener, self.terminal.pid)
        kept = [os.dup(fd) for fd in range(3)]
        try:
            for at, fd in zip((1 if s == "b" else int(s) for s in streams), fds):
                os.dup2(fd, at)
            program.pass_streams(self.conn, streams)
        finally:
            for at, fd in enumerate(kept):
                os.dup2(fd, at)
                os.close(fd)

    def told(self, timeout: float = 20.0) -> bool:
        """Wait until the pane says that its receipt is there; keep its terminal moving."""
        poll = select.poll()
        poll.register(self.conn.fileno(), select.POLLIN)
        for _ in range(int(timeout * 50)):
            if poll.poll(20):
                return True
            self.terminal.pump()
        return False

    def status(self) -> int:
        assert self.told(), self.terminal.text()
        return program.read_receipt(self.folder)

    def end(self) -> None:
        if self.conn is not None:
            self.conn.close()
        self.listener.close()
        os.close(self.folder)
        self.terminal.end()
