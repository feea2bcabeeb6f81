"""A Claude folder made by hand, and the hook run on it the way Claude runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TESTS = os.path.dirname(os.path.abspath(__file__))
HOOK = os.path.join(os.path.dirname(TESTS), "task_adopt.py")
DENY = os.path.join(TESTS, "fakes", "deny_call.py")

# What root may do anyway is taken from it: a file that is shut is shut.
UNPRIVILEGED = [] if os.getuid() else ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]

OLD = "aaaaaaaa-0000-4000-8000-000000000001"
OTHER = "cccccccc-0000-4000-8000-000000000003"
NEW = "bbbbbbbb-0000-4000-8000-000000000002"
LATER = "dddddddd-0000-4000-8000-000000000004"
SECOND = 10**9


class Said(NamedTuple):
    """What a run of the hook came to."""

    status: int
    stdout: str
    stderr: str

    @property
    def context(self) -> str:
        """Return the text for the model, checked to be the only output, "" if there is none."""
        if not self.stdout:
            return ""
        output = json.loads(self.stdout)["hookSpecificOutput"]
        assert output["hookEventName"] == "SessionStart"
        assert 0 < len(output["additionalContext"].encode()) <= 4096
        return str(output["additionalContext"])


def task(number: int, status: str = "pending", **more: Any) -> dict[str, Any]:
    """Return a task as Claude writes one; a value of `...` leaves the key out."""
    base = {
        "id": str(number),
        "subject": f"subject {number}",
        "description": f"description {number}",
        "status": status,
        "blocks": [],
        "blockedBy": [],
    }
    return {k: v for k, v in {**base, **more}.items() if v is not ...}


class Box:
    """A home with one project folder; times are seconds before now."""

    def __init__(self, folder: os.PathLike[str], name: str = "box") -> None:
        self.home = os.path.join(folder, name)
        self.project = os.path.join(self.home, "proj")
        self.claude = os.path.join(self.home, ".claude")
        self.tasks = os.path.join(self.claude, "tasks")
        self.folder = os.path.join(self.claude, "projects", "-box-proj")
        self.state = os.path.join(self.home, ".local/state/persistent-sessions")
        self.now = time.time_ns()
        for path in (self.project, self.tasks, self.folder):
            os.makedirs(path, exist_ok=True)

    def env(self, **more: str) -> dict[str, str]:
        return {"HOME": self.home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **more}

    def transcript(
        self, name: str, *records: object, cwd: str = "", ago: float = 100, raw: bytes = b""
    ) -> str:
        """Write a transcript: `raw`, or `records`, or one prompt typed in `cwd`."""
        path = os.path.join(self.folder, f"{name}.jsonl")
        typed = {"type": "user", "isSidechain": False, "message": {"content": "go on"}}
        usual = ({"type": "mode", "mode": "normal"}, {**typed, "cwd": cwd or self.project})
        text = "".join(json.dumps(r) + "\n" for r in records or usual)
        with open(path, "wb") as f:
            f.write(raw or text.encode())
        self.age(path, ago)
        return path

    def age(self, path: str, ago: float) -> None:
        then = self.now - int(ago * SECOND)
        os.utime(path, ns=(then, then))

    def store(self, name: str, *tasks: Mapping[str, Any], **files: str | bytes) -> str:
        """Write a task list; `files` are its other files, `__` standing for a dot."""
        path = os.path.join(self.tasks, name)
        os.makedirs(path, exist_ok=True)
        for at, one in enumerate(tasks, 1):
            with open(os.path.join(path, f"{one.get('id', at)}.json"), "w", encoding="utf-8") as f:
                json.dump(one, f, indent=2)
        for file, content in files.items():
            with open(os.path.join(path, file.replace("__", ".")), "wb") as g:
                g.write(content if isinstance(content, bytes) else content.encode())
        return path

    def session(self, name: str, *tasks: Mapping[str, Any], ago: float = 100, cwd: str = "") -> str:
        """Leave an earlier conversation behind: its transcript and its list."""
        self.transcript(name, ago=ago, cwd=cwd)
        return self.store(name, *(tasks or (task(1, "completed"), task(2, "in_progress"), task(3))))

    def record(self, name: str, pid: int, **more: Any) -> str:
        """Write Claude's record of a process that works on conversation `name`."""
        folder = os.path.join(self.claude, "sessions")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{pid}.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"pid": pid, "sessionId": name, "cwd": self.project, **more}, f)
        return path

    def witness(
        self, name: str, text: str, *, retired: str = "", rows: str = "registry.tsv"
    ) -> None:
        """Write what a persistent session keeps: its conversation, and in file `rows` its row."""
        os.makedirs(self.state, exist_ok=True)
        if rows:
            with open(os.path.join(self.state, rows), "a", encoding="utf-8") as f:
                f.write(f"{name}\t{self.project}\t-\n")
        with open(os.path.join(self.state, f"{name}.id"), "w", encoding="utf-8") as f:
            f.write(text)
        if retired:
            with open(os.path.join(self.state, f"{name}.retired"), "w") as f:
                f.write(retired)

    def payload(self, session: str = NEW, source: str = "startup", **more: Any) -> str:
        path = os.path.join(self.folder, f"{session}.jsonl")
        event = {"session_id": session, "transcript_path": path, "cwd": self.project}
        return json.dumps({**event, "hook_event_name": "SessionStart", "source": source, **more})

    def hook(
        self,
        session: str = NEW,
        source: str = "startup",
        *,
        text: str | None = None,
        before: Sequence[str] = (),
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Said:
        """Run the hook to its end; `before` is a command that runs it, `argv` another way to."""
        given = self.payload(session, source, **more) if text is None else text
        done = subprocess.run(
            [*before, *(argv or program())],
            input=given.encode("utf-8", "surrogateescape"),
            capture_output=True,
            env=self.env(**(env or {})),
            cwd=self.project,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())

    def command(self, *args: str, **env: str) -> Said:
        """Run `task-adopt ARGS`."""
        done = subprocess.run(
            [*program(), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.env(**env),
            cwd=self.project,
            timeout=60,
        )
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())

    def has(self, session: str = NEW) -> bool:
        return os.path.lexists(os.path.join(self.tasks, session))

    def lists(self) -> set[str]:
        """Return everything in the folder of all lists, so that nothing can hide there."""
        return set(os.listdir(self.tasks))


def program() -> list[str]:
    return [sys.executable, "-IS", HOOK]


def snapshot(folder: str) -> dict[str, tuple[bytes, int, int]]:
    """Return content, time and mode of every file below `folder`."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as f:
                now = os.stat(path)
                found[os.path.relpath(path, folder)] = (f.read(), now.st_mtime_ns, now.st_mode)
    return found


def files(folder: str) -> dict[str, bytes]:
    return {name: content for name, (content, _, _) in snapshot(folder).items()}
