"""The program with the real claude: commands run where claude may run, and what is to be seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import sessions
from support import SESSIONS, wait_until

from harness.fixtures import PATIENCE, Real


class Ours:
    """persistent_sessions.py beside a real claude, in its network namespace."""

    def __init__(self, real: Real) -> None:
        self.real = real
        os.environ.update(real.env)  # the panes of our own tmux client see the same server
        self.configure()

    def configure(self, **groups: dict[str, Any]) -> None:
        sessions.configure(**{"launch": {"verify_s": PATIENCE}, **groups})

    def ps(self, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return self.real.run(sys.executable, "-IS", SESSIONS, *args, **how)

    def open(self, name: str, *args: str) -> None:
        """Open a session in a folder of its name, with these arguments for claude; wait for it."""
        self.configure(claude={"open_args": list(args)})
        folder = os.path.join(self.real.home, name)
        os.makedirs(folder, exist_ok=True)
        done = self.ps("open", cwd=folder)
        assert done.returncode == 0, done.stderr
        self.real.ready(name)

    def row(self, name: str) -> dict[str, Any]:
        return sessions.listed(self.ps)[name]

    def crash(self, name: str) -> None:
        """Kill a session's claude and wait for its supervisor."""
        os.kill(self.real.record(name)["pid"], signal.SIGKILL)
        self.wait_for_end(name)

    def wait_for_end(self, name: str) -> None:
        assert wait_until(lambda: sessions.ended(name), PATIENCE), self.real.screen(name)

    def start(self, name: str) -> None:
        """Bring a session back and wait for its prompt."""
        done = self.ps("start", name)
        assert done.returncode == 0, done.stderr
        self.real.ready(name)

    def id(self, name: str) -> str:
        return str(self.real.record(name)["sessionId"])

    def retired(self, name: str) -> bool:
        return (sessions.state() / f"{name}.retired").exists()


@pytest.fixture
def ours(real_claude: Real) -> Ours:
    return Ours(real_claude)
