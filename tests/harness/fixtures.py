"""Fixtures for tests with the real claude; test files import them by name."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support
from support import ABSENT, TESTS, alive, end_processes, pids_marked, wait_until

from harness import claude

# Claude starts in about a second on an idle machine; a busy one gets its time.
PATIENCE = float(os.environ.get("PS_TEST_PATIENCE", "60"))

# "", "dead" while the status is not known, then "dead STATUS" or "dead signal-N"
DEAD = "#{?pane_dead,dead #{?pane_dead_signal,signal-#{pane_dead_signal},#{pane_dead_status}},}"

READY = ("shift+tab to cycle", "? for shortcuts")


class Real:
    """The real claude with a home, a project folder and a tmux server of its own."""

    def __init__(self, home: str, net: claude.Net | claude.NoNet, binary: str) -> None:
        self.home, self.net, self.binary = home, net, binary
        self.project = os.path.join(home, "proj")
        self.log = os.path.join(home, "events.jsonl")
        os.makedirs(self.project, exist_ok=True)
        claude.prepare_home(home, self.project)
        self.env = {**os.environ, **claude.environment(home, binary)}

    # -- running things inside the namespace

    def run(self, *argv: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespace, with claude's environment, to its end."""
        how.setdefault("stdin", subprocess.DEVNULL if "input" not in how else None)
        return subprocess.run(
            self.net.inside(*argv),
            env={**self.env, **how.pop("env", {})},
            cwd=how.pop("cwd", self.project),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=how.pop("timeout", 120),
            start_new_session=True,
            **how,
        )

    def claude(self, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return self.run(self.binary, *args, **how)

    def tmux(self, *args: str) -> str:
        """Run a tmux command and return what it printed; a failure is the test's failure."""
        done = self.run("tmux", "-u", "-f", "/dev/null", *args)
        assert done.returncode == 0, f"tmux {args}: {done.stderr}"
        return done.stdout

    # -- one claude in a pane, without our program

    def settings(self, **extra: Any) -> str:
        """Write a settings file with hooks that note every start and end; return its path."""
        line = "line=$(cat); printf '%s\\n' \"$line\" >>"  # in one write: two may fire at once
        note = {"type": "command", "command": line + shlex.quote(self.log)}
        events = {name: [{"hooks": [note]}] for name in ("SessionStart", "SessionEnd")}
        path = os.path.join(self.home, "settings.json")
        defaults = {"skipDangerousModePermissionPrompt": True, "disableAgentView": True}
        claude.write_json(path, {"hooks": events, **defaults, **extra})
        return path

    def open(
        self,
        name: str,
        *args: str,
        size: tuple[int, int] = (200, 50),
        cwd: str = "",
        without: tuple[str, ...] = (),
        added: tuple[str, ...] = (),
        settings: str | None = None,
    ) -> None:
        """Start claude as the process of a new pane; a dead pane stays, with its status."""
        chosen = self.settings() if settings is None else settings
        argv = [self.binary, *(["--settings", chosen] if chosen else []), *args]
        dropped = [word for key in without for word in ("-u", key)]
        command = "exec " + shlex.join(["env", *dropped, *added, *argv])
        where = ["-x", str(size[0]), "-y", str(size[1]), "-c", cwd or self.project]
        server = [";", "set-option", "-w", "-t", f"={name}:", "remain-on-exit", "on"]
        self.tmux("new-session", "-d", "-s", name, *where, command, *server)

    def screen(self, name: str) -> str:
        """Return what a pane shows; of a dead one also what has scrolled off its top.

        tmux makes room for its "Pane is dead", and claude's last words may be one line.
        """
        pane = f"={name}:"
        said = self.tmux("display-message", "-p", "-t", pane, DEAD)
        dead, _, status = said.strip().partition(" ")
        if dead and not status:
            # tmux 3.3a is deaf to SIGCHLD while its utempter helper runs for the closed
            # terminal: the next child that ends makes it reap this one too.
            self.tmux("run-shell", "true")
        history = ["-S", "-"] if dead else []
        return self.run("tmux", "-u", "capture-pane", "-p", *history, "-t", pane).stdout

    def keys(self, name: str, *keys: str) -> None:
        self.tmux("send-keys", "-t", f"={name}:", *keys)

    def see(self, name: str, *wanted: str, timeout: float = PATIENCE) -> str:
        """Wait until one of `wanted` is on the screen; return the screen."""

        def shown() -> str:
            text = self.screen(name)
            return text if any(one in text for one in wanted) else ""

        found = wait_until(shown, timeout)
        assert found, f"none of {wanted} came on the screen of {name}:\n{self.screen(name)}"
        return found

    def press_until(self, name: str, key: str, wanted: str, timeout: float = PATIENCE) -> str:
        """Press a key until `wanted` is seen: claude drops keys that come as it draws a dialog."""

        def pressed() -> str:
            self.keys(name, key)
            return wait_until(lambda: shown if wanted in (shown := self.screen(name)) else "", 3)

        found = wait_until(pressed, timeout)
        assert found, f"{key} did not bring {wanted!r} on the screen:\n{self.screen(name)}"
        return found

    def panel(self, name: str, *wanted: str) -> None:
        """Wait until the task panel shows these lines; Ctrl+T would hide one that stands there."""

        def shown() -> bool:
            text = self.screen(name)
            if "ctrl+t to show tasks" in text:
                self.keys(name, "C-t")
                wait_until(lambda: "ctrl+t to show tasks" not in self.screen(name), 3)
            return all(line in text for line in wanted)

        assert wait_until(shown, PATIENCE), f"{wanted} not in the panel:\n{self.screen(name)}"

    def mark(self, name: str, option: str) -> bool:
        """Bring a dialog's mark to an option; tell whether it stays there for a second."""
        shown = self.screen(name)
        if f"❯ {option}" not in shown and option in shown:
            self.keys(name, "Down")
            wait_until(lambda: self.screen(name) != shown, 3)
            return False
        return not wait_until(lambda: self.screen(name) != shown, 1)

    def choose(self, name: str, option: str) -> None:
        """Answer a dialog with an option; claude may draw it anew meanwhile, mark and all."""

        def gone() -> bool:
            shown = self.screen(name)
            if option not in shown or "Pane is dead" in shown:
                return True
            if self.mark(name, option):
                self.keys(name, "Enter")
                wait_until(lambda: self.screen(name) != shown, 3)
            return False

        assert wait_until(gone, PATIENCE), f"{option!r} was not taken:\n{self.screen(name)}"

    def ready(self, name: str) -> str:
        """Wait for the prompt of a pane; return the screen."""
        return self.see(name, *READY)

    def type(self, name: str, text: str) -> None:
        """Type a line: the Enter key follows when the text is on the screen."""
        self.keys(name, "-l", text)
        self.see(name, text[-30:])
        self.keys(name, "Enter")

    def ask(self, name: str, text: str) -> dict[str, Any]:
        """Type a prompt and wait for the whole answer; return the first request it caused."""
        before = len(self.asked(text))
        self.type(name, text)

        def answer() -> str:
            last = [r["answer"][-1] for r in self.asked(text)[before:] if r["answer"]]
            return last[-1].get("text", "") if last else ""

        said = wait_until(answer, PATIENCE)
        assert said, f"the model never answered {text!r}:\n{self.screen(name)}"
        self.see(name, said.partition("\n")[0][:40])
        # The transcript comes a moment after the answer: what is killed before has no memory.
        session = self.record(name)["sessionId"]
        assert wait_until(lambda: text in self.prompts(session), PATIENCE), "not in the transcript"
        return self.asked(text)[before]

    def say(self, name: str, text: str) -> str:
        """Type a prompt and wait until the transcript holds the answer; return its path."""
        session = self.record(name)["sessionId"]
        self.type(name, text)

        def answered() -> bool:
            kinds = [r["type"] for r in self.transcript(session) if not r.get("isSidechain")]
            return text in self.prompts(session) and kinds.count("assistant") >= len(
                self.prompts(session)
            )

        assert wait_until(answered, PATIENCE), f"no answer to {text!r}:\n{self.screen(name)}"
        return claude.transcript(self.home, session)

    def asked(self, text: str) -> list[dict[str, Any]]:
        """Return the requests whose last typed prompt is `text`."""
        return [r for r in self.net.requests() if r.get("prompt") == text]

    def end_status(self, name: str) -> str:
        """Wait for the pane's process to end; return its status, or "signal-N"."""

        def dead() -> str:
            self.screen(name)  # makes tmux notice
            return self.tmux("display-message", "-p", "-t", f"={name}:", DEAD).strip()[5:]

        status = wait_until(dead, PATIENCE)
        assert status, f"{name} did not end:\n{self.screen(name)}"
        return status

    # -- what claude wrote

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the payloads of the hooks, oldest first."""
        found = support.read_log(self.log)
        return [e for e in found if not names or e["hook_event_name"] in names]

    def event(self, number: int, *names: str) -> dict[str, Any]:
        """Wait for the hook call with that number; return its payload."""
        assert wait_until(lambda: len(self.events(*names)) > number, PATIENCE), self.events()
        return self.events(*names)[number]

    def records(self) -> list[dict[str, Any]]:
        return claude.records(self.home)

    def record(self, name: str) -> dict[str, Any]:
        """Wait for the record of the live claude in a tmux session."""

        def found() -> list[dict[str, Any]]:
            mine = [r for r in self.records() if r.get("tmux", "").startswith(name + ":")]
            return [r for r in mine if alive(r["pid"])]

        assert wait_until(found, PATIENCE), f"no record names {name}: {self.records()}"
        return found()[-1]

    def transcript(self, session: str) -> list[dict[str, Any]]:
        return claude.transcript_records(self.home, session)

    def prompts(self, session: str) -> list[str]:
        return claude.typed_prompts(self.transcript(session))

    def end(self) -> None:
        """End the tmux server and whatever else of claude lives on: its background service does."""
        self.run("tmux", "kill-server")
        pids = pids_marked("HOME", self.home) - {self.net.pid}
        end_processes(pids, 0.2)
        for folder in claude.service_folders(self.home):
            shutil.rmtree(folder, ignore_errors=True)
        sockets = os.path.join(self.env["XDG_RUNTIME_DIR"], "cc-socks")
        shutil.rmtree(sockets, ignore_errors=True)


@pytest.fixture(scope="session")
def claude_binary() -> str:
    """Return the path of the real claude, installed at the first use."""
    try:
        return claude.install()
    except claude.Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def real_claude(private: Path, claude_binary: str) -> Iterator[Real]:
    """Give the test the real claude, cut off from every network but the scripted API."""
    if os.getuid() != 0:
        pytest.skip(f"{ABSENT}root, for a network namespace of our own")
    try:
        with claude.net(str(private)) as net:
            real = Real(str(private / "home"), net, claude_binary)
            yield real
            real.end()
    except claude.Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(
    params=[pytest.param("real", marks=pytest.mark.claude_real), pytest.param("stand-in")]
)
def agent(request: pytest.FixtureRequest, private: Path) -> Iterator[Real]:
    """Give the test the real claude, then the stand-in: what is true of one is true of both."""
    if request.param == "real":
        yield request.getfixturevalue("real_claude")
        return
    stand_in = Real(str(private / "home"), claude.NoNet(), os.path.join(TESTS, "fakes", "claude"))
    yield stand_in
    stand_in.end()
