"""Install the real Claude Code once, and run it where nothing can leave the machine.

The binary comes from its npm package into a cache folder of the tests, never into the user's
installation.  A `Net` is a network namespace with a loopback and the scripted API in it; every
process that may become claude is started inside, and talked to over tmux's unix socket, which no
network namespace hides.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support import ABSENT, ROOT, read_log, wait_until

VERSION = "2.1.332"
PACKAGE = "@anthropic-ai/claude-code"
PORT = 8399  # in a namespace of its own nobody else can have it
API = os.path.join(ROOT, "tests", "harness", "messages_api.py")
KEY = "sk-ant-test-0000-0000-0000-0000"  # not a key: its last 20 characters are approved below
SECONDS_TO_INSTALL = 600

# The tests replace HOME; the cache belongs to the home that was there before.
CACHE_HOME = os.environ.get("XDG_CACHE_HOME") or os.path.join(
    pwd.getpwuid(os.getuid()).pw_dir, ".cache"
)
# npm needs the person's own settings (a proxy, a registry), so it runs with their environment.
OUTER = dict(os.environ)


class Unavailable(Exception):
    """The real binary cannot be had here; the text says why."""


# ---- Installing -----------------------------------------------------------


def cache_folder() -> str:
    return os.path.join(CACHE_HOME, "persistent-sessions-tests", f"claude-{VERSION}")


def installed(folder: str) -> str:
    """Return the binary below `folder`, "" when it is not (completely) there."""
    named = os.environ.get("PS_TEST_CLAUDE", "")
    modules = os.path.join(folder, "node_modules")
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, "")
    for path in (named, os.path.join(modules, f"{PACKAGE}-linux-{machine}", "claude")):
        if path and os.access(path, os.X_OK):
            return path
    return ""


def install() -> str:
    """Return the path of the real binary; installs it first where it is missing."""
    folder = cache_folder()
    if found := installed(folder):
        return found
    npm = shutil.which("npm", path=OUTER.get("PATH", os.defpath))
    if not npm:
        raise Unavailable(f"{ABSENT}npm, to install the real claude")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := installed(folder):
            return found
        argv = [npm, "install", "--prefix", folder, "--no-audit", "--no-fund"]
        done = subprocess.run(
            [*argv, f"{PACKAGE}@{VERSION}"],
            env=OUTER,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=SECONDS_TO_INSTALL,
        )
        found = installed(folder)
    if not found:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"{ABSENT}the npm package of claude ({last})")
    return found


# ---- A home in which claude asks nothing ----------------------------------


def write_json(path: str, value: Any) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)


def prepare_home(home: str, *trusted: str) -> None:
    """Answer the questions of a first start; `trusted` folders are trusted."""
    answers = {
        "hasCompletedOnboarding": True,
        "hasSeenAutoDefaultNotice": True,
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {folder: {"hasTrustDialogAccepted": True} for folder in trusted},
    }
    write_json(os.path.join(home, ".claude.json"), answers)


def variables(port: int = PORT) -> dict[str, str]:
    """Return what makes claude ask the scripted API, and nobody else."""
    return {
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def environment(home: str, binary: str) -> dict[str, str]:
    """Return the whole environment for the real claude in `home`; it reaches loopback only."""
    bin_folder = os.path.join(home, ".local", "bin")
    os.makedirs(bin_folder, exist_ok=True)
    link = os.path.join(bin_folder, "claude")
    if not os.path.lexists(link):
        os.symlink(binary, link)
    found = {
        "HOME": home,
        "PATH": f"{bin_folder}:/usr/local/bin:/usr/bin:/bin",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        **variables(),
    }
    if os.getuid() == 0:
        found["IS_SANDBOX"] = "1"  # root may not skip permissions otherwise
    return found


# ---- The network namespace and the API in it ------------------------------


class Net:
    """A network namespace with nothing but a loopback, and the scripted API on it."""

    def __init__(self, folder: str) -> None:
        self.log = os.path.join(folder, "api.jsonl")
        ready = os.path.join(folder, "api.ready")
        argv = [sys.executable, "-IS", API, "--loopback", "--port", str(PORT)]
        self.process = subprocess.Popen(
            ["unshare", "-n", *argv, "--log", self.log, "--ready", ready],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if not wait_until(lambda: os.path.exists(ready) or self.process.poll() is not None, 20):
            raise Unavailable("the scripted API did not start in 20 s")
        if self.process.poll() is not None:
            assert self.process.stderr is not None
            why = self.process.stderr.read().decode(errors="replace").strip()
            raise Unavailable(f"{ABSENT}a network namespace of our own ({why})")

    @property
    def pid(self) -> int:
        return self.process.pid

    def inside(self, *argv: str) -> list[str]:
        """Return a command that runs `argv` in the namespace, as a child and with the same pid."""
        return ["nsenter", "-t", str(self.process.pid), "-n", *map(str, argv)]

    def requests(self) -> list[dict[str, Any]]:
        """Return what the model was asked, oldest first; half a last line is left out."""
        return read_log(self.log)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


class NoNet:
    """In the place of a `Net` for the stand-in claude, which talks to nobody."""

    pid = 0

    def inside(self, *argv: str) -> list[str]:
        return [*map(str, argv)]

    def requests(self) -> list[dict[str, Any]]:
        return []


@contextlib.contextmanager
def net(folder: str) -> Iterator[Net]:
    made = Net(folder)
    try:
        yield made
    finally:
        made.end()


# ---- Claude's own files ---------------------------------------------------


def records(home: str) -> list[dict[str, Any]]:
    """Return Claude's records of its sessions that can be read now."""
    folder = os.path.join(home, ".claude", "sessions")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".json"):
            with contextlib.suppress(OSError, ValueError):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    found.append(json.load(f))
    return found


def service_folders(home: str) -> set[str]:
    """Return the folders outside `home` in which its background service keeps its sockets."""
    found = set()
    path = os.path.join(home, ".claude", "daemon", "roster.json")
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as f:
        for worker in json.load(f)["workers"].values():
            socket = worker.get("rendezvousSock", "")
            if "/cc-daemon-" in socket:
                found.add(os.path.dirname(os.path.dirname(socket)))
    return found


def transcript(home: str, session: str) -> str:
    """Return the path of a conversation's transcript, "" when there is none."""
    root = os.path.join(home, ".claude", "projects")
    for folder in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        path = os.path.join(root, folder, session + ".jsonl")
        if os.path.exists(path):
            return path
    return ""


def transcript_records(home: str, session: str) -> list[dict[str, Any]]:
    return read_log(transcript(home, session))


def typed_prompts(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a person typed, from transcript records."""
    said = []
    for entry in entries:
        content = entry.get("message", {}).get("content")
        if entry.get("type") == "user" and isinstance(content, str) and not entry.get("isMeta"):
            said.append(content)
    return said
