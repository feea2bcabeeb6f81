"""A person on a throw-away machine: what they type, and what they see."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from boxlib import CLONE, Box
from support import TESTS, wait_until

NAME = "persistent-sessions"
UNIT, TIMER = f"{NAME}.service", f"{NAME}.timer"
PATIENCE = 40.0  # seconds for sessions to come back on a busy machine


class Person:
    """An account with linger, a clone of this repository and the stand-in agent."""

    def __init__(self, box: Box, name: str) -> None:
        self.box, self.name, self.home = box, name, f"/home/{name}"
        agent = os.path.join(TESTS, "fakes", "claude")
        box.put_program(name, agent, f"{self.home}/.local/bin/claude")
        self.run("mkdir", "-p", ".claude")
        self.configure()

    # ---- What they type ---------------------------------------------------

    def run(self, *argv: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return self.box.user(self.name, *argv, **how)

    def out(self, *argv: str, **how: Any) -> str:
        return self.run(*argv, **how).stdout.strip()

    def ps(self, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return self.run(f"{self.home}/.local/bin/{NAME}", *args, **how)

    def systemctl(self, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return self.run("systemctl", "--user", *args, **how)

    def tmux(self, *args: str, **how: Any) -> str:
        return self.out("tmux", "-u", *args, **how)

    def install(self) -> subprocess.CompletedProcess[str]:
        """Set everything up with the one command."""
        return self.run(f"{self.home}/{CLONE}/install.sh")

    def configure(self, **groups: dict[str, Any]) -> None:
        """Write config.json.  A box has no route to wait for."""
        path = f"{self.home}/.config/{NAME}/config.json"
        self.write(path, json.dumps({"network": {"wait_s": 0}, **groups}))

    def write(self, path: str, text: str) -> None:
        self.box.write(path, text, owner=self.name)

    def open(self, folder: str) -> None:
        """Open a session in a folder of the home, wait for its prompt, close the window."""
        self.run("mkdir", "-p", f"{self.home}/{folder}")
        words = f"cd ~/{folder} && exec persistent-sessions open"
        window = self.box.terminal(self.name, "sh", "-c", words)
        try:
            window.expect("shift+tab to cycle", PATIENCE)
        finally:
            window.end()

    def type_line(self, session: str, text: str) -> None:
        assert wait_until(lambda: "❯" in self.screen(session), PATIENCE), self.screen(session)
        self.tmux("send-keys", "-t", f"={session}:", "-l", text)
        self.tmux("send-keys", "-t", f"={session}:", "Enter")

    def prompt(self, session: str, text: str) -> str:
        """Type a prompt and return the answer, which names the prompts before it."""
        self.type_line(session, text)
        wanted = f"ANSWER to: {text}"
        assert wait_until(lambda: wanted in self.screen(session), PATIENCE), self.screen(session)
        lines = [line for line in self.screen(session).splitlines() if wanted in line]
        return lines[-1].strip()

    def declare(self, *rows: Sequence[str]) -> None:
        """Merge manifest rows: push them from elsewhere and fetch them into the clone."""
        text = "".join("\t".join(row) + "\n" for row in rows)
        self.write(f"{self.home}/elsewhere.tsv", text)
        self.run("sh", "-ec", DECLARE)
        self.configure(manifest={"clone": f"{self.home}/boxes"})

    def hurry(self) -> None:
        """Have the timer tick now, and a second after each run."""
        folder = f"{self.home}/.config/systemd/user/{TIMER}.d"
        text = "[Timer]\nOnStartupSec=1s\nOnUnitInactiveSec=1s\nAccuracySec=10ms\n"
        self.write(f"{folder}/fast.conf", text)
        self.systemctl("daemon-reload")
        self.systemctl("restart", TIMER)

    # ---- What they see ----------------------------------------------------

    def screen(self, session: str) -> str:
        return self.tmux("capture-pane", "-p", "-t", f"={session}:", check=False)

    def panes(self) -> dict[str, str]:
        """Return {session: pid of its pane}, {} without a server."""
        lines = self.tmux("list-panes", "-a", "-F", "#{session_name} #{pane_pid}", check=False)
        return dict(line.split(" ") for line in lines.splitlines() if line.count(" ") == 1)

    def table(self) -> dict[str, str]:
        """Return {session: state} as `list` shows it."""
        shown = json.loads(self.ps("list", "--json", check=False).stdout)
        return {row["name"]: row["state"] for row in shown["sessions"]}

    def live(self) -> set[str]:
        return {name for name, state in self.table().items() if state == "LIVE"}

    def wait_for(self, *names: str) -> None:
        """Wait until these and no other sessions are live, once the unit has ended its run."""
        wanted = set(names)

        def settled() -> bool:
            if self.box.property(self.name, UNIT, "ActiveState") not in ("inactive", "failed"):
                return False
            return self.live() == wanted and wanted <= set(self.panes())

        if not wait_until(settled, PATIENCE):
            journal = self.box.journal(f"_UID={self.out('id', '-u')}")
            raise AssertionError(f"wanted {names}: {self.table()}\n{journal[-3000:]}")

    def pairs(self, session: str, kind: str) -> dict[str, str]:
        """Return a state file's key=value pairs, {} when it is not there."""
        path = f"{self.home}/.local/state/{NAME}/{session}.{kind}"
        text = self.run("cat", path, check=False).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def conversation(self, session: str) -> str:
        """Return the conversation id of a live session, as claude itself recorded it."""
        agent = self.pairs(session, "run")["claude"]
        return str(json.loads(self.out("cat", f".claude/sessions/{agent}.json"))["sessionId"])


DECLARE = """
git config --global user.name ann && git config --global user.email ann@example.org
git config --global init.defaultBranch main
if [ ! -d boxes ]; then
    git init -q --bare origin.git && git clone -q origin.git elsewhere 2>&1
    cp elsewhere.tsv elsewhere/persistent-sessions.tsv
    git -C elsewhere add . && git -C elsewhere commit -qm rows
    git -C elsewhere push -q origin HEAD
    git clone -q origin.git boxes
else
    cp elsewhere.tsv elsewhere/persistent-sessions.tsv
    git -C elsewhere commit -qam rows && git -C elsewhere push -q origin HEAD
    git -C boxes fetch -q
fi
"""
