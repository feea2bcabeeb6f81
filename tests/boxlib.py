"""Drive tests/box from a test: a machine that boots in a second, and loses power in less."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from typing import Any

from support import ROOT, TESTS, Terminal, wait_until

PROGRAM = [sys.executable, "-IS", os.path.join(TESTS, "box")]
CLONE = "persistent-sessions"  # the folder in a user's home that holds a copy of this repository


def why_not() -> str:
    """Return the reason why this machine cannot host a box, "" when it can."""
    done = subprocess.run([*PROGRAM, "why"], stdout=subprocess.PIPE, encoding="utf-8")
    return done.stdout.strip() if done.returncode else ""


def repository_files() -> list[str]:
    """Return the files of this clone, those not committed yet included."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT]
    argv = [*git, "ls-files", "-coz", "--exclude-standard"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    names = sorted(set(done.stdout.decode().split("\0")) - {""})
    return [n for n in names if os.path.lexists(os.path.join(ROOT, n))]


class Box:
    """One throw-away machine.  Everything is text; a command that fails raises with its output."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def box(self, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run `tests/box ARGS`; with check=False a failure is an answer."""
        check = how.pop("check", True)
        how.setdefault("timeout", 150)
        if "input" not in how:
            how["stdin"] = subprocess.DEVNULL
        done = subprocess.run(
            [*PROGRAM, *map(str, args)],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            start_new_session=True,
            **how,
        )
        if check and done.returncode != 0:
            said = f"{done.stdout}{done.stderr}".strip()
            called = " ".join(map(str, args))
            raise AssertionError(f"box {called}: status {done.returncode}: {said}")
        return done

    # ---- The machine ------------------------------------------------------

    def boot(self) -> None:
        self.box("boot", self.folder)

    def off(self) -> None:
        """Shut down in order, as `poweroff` does."""
        self.box("off", self.folder)

    def crash(self) -> None:
        """Cut the power."""
        self.box("crash", self.folder)

    def reboot(self) -> None:
        self.off()
        self.boot()

    def remove(self) -> None:
        self.box("rm", self.folder, check=False)

    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    # ---- Commands ---------------------------------------------------------

    def root(self, *argv: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as root."""
        return self.box("exec", self.folder, *argv, **how)

    def user(
        self, name: str, *argv: str, env: Mapping[str, str] | None = None, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as `name` with the environment of its user manager; nobody logs in."""
        words = ["env", *(f"{k}={v}" for k, v in env.items())] if env else []
        return self.box("user", self.folder, name, *words, *argv, **how)

    def login(self, name: str, *argv: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as `name` in a login session, which ends with it."""
        return self.box("login", self.folder, name, *argv, **how)

    def out(self, name: str, *argv: str, **how: Any) -> str:
        """Return what a command of user `name` prints, without white space around it."""
        run = self.root if name == "root" else lambda *a, **h: self.user(name, *a, **h)
        return run(*argv, **how).stdout.strip()

    def terminal(self, name: str, *argv: str, **how: Any) -> Terminal:
        """Run a command as `name` on a terminal of the box; the caller calls its end()."""
        return Terminal(*PROGRAM, "user", self.folder, name, *argv, **how)

    # ---- Files and people -------------------------------------------------

    def write(self, path: str, text: str, owner: str = "root", mode: str = "644") -> None:
        """Write a file of the box, and the folders above it; they belong to `owner`."""
        script = 'mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"'
        run = self.root if owner == "root" else lambda *a, **h: self.user(owner, *a, **h)
        run("sh", "-c", script, "sh", path, mode, input=text)

    def read(self, path: str) -> str:
        return self.root("cat", path).stdout

    def exists(self, path: str) -> bool:
        return self.root("test", "-e", path, check=False).returncode == 0

    def add_user(self, name: str, linger: bool = True) -> str:
        """Make an account; with linger its manager runs from boot on.  Return its home."""
        self.root("useradd", "--create-home", "--shell", "/bin/bash", name)
        if linger:
            self.root("loginctl", "enable-linger", name)
            assert self.manager_is_up(name)
        return f"/home/{name}"

    def manager_is_up(self, name: str, timeout: float = 20) -> bool:
        """Wait for the user manager of `name` to answer."""

        def answers() -> bool:
            state = self.out(name, "systemctl", "--user", "is-system-running", check=False)
            return state in ("running", "degraded", "starting")

        return wait_until(answers, timeout)

    def put_repository(self, name: str) -> str:
        """Copy this clone into the home of `name`; return the folder."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path in repository_files():
                tar.add(os.path.join(ROOT, path), path, recursive=False, filter=as_nobody)
        folder = f"/home/{name}/{CLONE}"
        argv = ["user", self.folder, name, "sh", "-c", f"mkdir -p {folder} && tar -xC {folder}"]
        done = subprocess.run(
            [*PROGRAM, *argv], input=archive.getvalue(), stderr=subprocess.PIPE, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return folder

    def put_program(self, name: str, source: str, path: str) -> None:
        """Copy one file of this machine to `path` of the box, executable."""
        with open(source, encoding="utf-8") as f:
            self.write(path, f.read(), owner=name, mode="755")

    # ---- Looking ----------------------------------------------------------

    def journal(self, *args: str) -> str:
        """Return the journal of this boot, for a message when a test fails."""
        return self.root("journalctl", "-b", "--no-pager", "-o", "short-monotonic", *args).stdout

    def property(self, name: str, unit: str, key: str) -> str:
        """Return one property of a user unit, "" while the user has no manager."""
        argv = ["systemctl", "--user", "show", "--value", "-p", key, unit]
        return self.out(name, *argv, check=False)


def as_nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave the owner out of the archive: it is the one who unpacks it."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info
