"""Several at once: one claude a conversation, no id lost, what was ended stays so, files whole.

The moments come from the seed of hostile.py; the processes are real, and so is what they do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import sessions
import support
from hostile import Maker, cases, named
from sessions import claude_folder, claudes, declare, doubled, head_id, new_id, row, state

import persistent_sessions as program

LIMIT = pytest.mark.limit(3000)


# ---- What must hold whatever the order --------------------------------------


def records() -> dict[int, str]:
    """Return the conversation of each live claude that has written its record."""
    found = {}
    for pid in claudes():
        with contextlib.suppress(OSError, ValueError):
            text = (claude_folder() / "sessions" / f"{pid}.json").read_text()
            found[pid] = json.loads(text)["sessionId"]
    return found


def retired(name: str) -> bool:
    return (state() / f"{name}.retired").exists()


def check_now() -> None:
    """Check what must hold at every moment."""
    assert not doubled(), f"two claudes of one session: {claudes()}"
    known = list(records().values())
    assert len(known) == len(set(known)), f"two claudes of one conversation: {known}"


def check_files(names) -> None:
    """Check that every file of the state folder is whole."""
    text = (state() / "registry.tsv").read_text() if (state() / "registry.tsv").exists() else ""
    opened, bad = program.parse_rows(text, declared=False)
    assert not bad and {s.name for s in opened} <= set(names), text
    assert not text or text.endswith("\n")
    for path in state().glob("*.id"):
        lines = path.read_text().split("\n")
        assert lines.pop() == "" and lines and all(map(program.is_session_id, lines)), path
    left = [n for n in os.listdir(state()) if n.startswith(".") and n.endswith(".tmp")]
    assert not left, left


def settle() -> None:
    """Wait until no command of ours is at work and every claude has its record."""

    def quiet() -> bool:
        live = claudes()
        runs = [int(pairs_of(p).get("pid", "0")) for p in state().glob("*.run")]
        runs = [pid for pid in runs if support.alive(pid)]
        shown = set(sessions.panes().values())  # one without a terminal is about to end
        return len(runs) == len(live) == len(records()) and shown.issuperset(runs)

    support.wait_until(quiet, 20)


def pairs_of(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError):
        return program.parse_pairs(path.read_text())
    return {}


# ---- Commands that meet -----------------------------------------------------


def unit_start(ps):
    return ps.start("start", env={"PS_UNIT": "1"})


ACTS = {
    "start": unit_start,
    "another start": unit_start,
    "start a": lambda ps: ps.start("start", "a"),
    "open": lambda ps: ps.start("open", "a", cwd=os.path.expanduser("~/a")),
    "open again": lambda ps: ps.start("open", cwd=os.path.expanduser("~/a")),
    "retire": lambda ps: ps.start("retire", "a"),
    "stop": lambda ps: ps.start("stop", "a"),
    "install": lambda ps: ps.start("install"),
    "list": lambda ps: ps.start("list"),
    "rename": lambda ps: ps.start("rename", "own", "other"),
    "exit": lambda ps: tmux_later("send-keys", "-t", "=a:", "/exit", "Enter"),
    "exit of own": lambda ps: tmux_later("send-keys", "-t", "=own:", "/exit", "Enter"),
    "kill-server": lambda ps: tmux_later("kill-server"),
    "kill-session": lambda ps: tmux_later("kill-session", "-t", "=a"),
    "kill": lambda ps: crash("a"),
}
ENDS = {"retire", "stop", "exit"}  # after one of these `a` may be ended


def tmux_later(*words):
    return subprocess.Popen(["tmux", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip


def crash(name):
    pid = sessions.agent(name)
    if pid and support.alive(pid):
        os.kill(pid, signal.SIGKILL)


def run_together(ps, make: Maker, names: list[str]) -> list[str]:
    """Begin acts at moments of the seed, now and then stopping one for a while; return stderrs."""
    running = []
    for name in names:
        time.sleep(make.random.random() ** 2 * 0.6)
        process = ACTS[name](ps)
        if process is not None:
            running.append(process)
            if make.chance(30):
                threading.Thread(target=hold, args=(process, make.random.random())).start()
        check_now()
    said = []
    for process in running:
        said.append((process.communicate(timeout=90)[1] or "") if process.stderr else "")
        process.wait()
    return said


def hold(process, fraction: float) -> None:
    """Stop a process somewhere in its work, and let it go on after others had their turn."""
    time.sleep(fraction * 0.3)
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2 + fraction)
            process.send_signal(signal.SIGCONT)


def known_ids() -> dict[str, set[str]]:
    """Return every conversation id that is filed, wherever a rename or `install` put it."""
    files = [*state().glob("*.id"), *state().glob("attic/*.id")]
    return {p.name: set(p.read_text().split()) for p in files}


def was_said(session_id: str) -> bool:
    """Tell whether a conversation has anything in it: of the others only the last are kept."""
    files = claude_folder().glob(f"projects/*/{session_id}.jsonl")
    return any('"type":"user"' in p.read_text().replace(" ", "") for p in files)


@LIMIT
@pytest.mark.tmux
def test_commands_that_meet_keep_every_promise(ps, claude):
    declare(row("a"), row("b"))
    os.makedirs(os.path.expanduser("~/own"))
    ps("open", cwd=os.path.expanduser("~/own"))
    ps("start")
    for name in ("a", "b", "own"):
        sessions.prompt(name, f"remember {name}")
    first = {name: head_id(name) for name in ("a", "b", "own")}
    for case in cases("commands that meet", 12, 20):
        make = case.make
        chosen = [make.one(*ACTS) for _ in range(make.one(2, 3, 3, 5))]
        if "rename" in chosen and make.chance(50):
            chosen.remove("rename")
        with named("commands that meet", case):
            make.noted((chosen,))
            before = set().union(*known_ids().values())
            said = run_together(ps, make, chosen)
            make.noted(said)
            settle()
            check_now()
            assert not any("Traceback" in each for each in said)
            check_files(("a", "b", "own", "other"))
            lost = before - set().union(*known_ids().values())
            assert not any(map(was_said, lost)), f"an id was lost: {lost}"
            check_return(ps, make, chosen)
            own = "other" if (state() / "other.id").exists() else "own"
            restore(ps, own)
            now = {"a": head_id("a"), "b": head_id("b"), "own": head_id(own)}
            make.noted((first, now))
            assert now["b"] == first["b"], "b was in nobody's way"
            first = now


def check_return(ps, make: Maker, chosen: list[str]) -> None:
    """Check that the next start brings back exactly what was not ended."""
    ended = {n for n in ("a", "b", "own", "other") if retired(n)}
    assert "b" not in ended and ("a" not in ended or ENDS & set(chosen)), ended
    if any(path.exists() for path in state().glob("*.health")):
        for path in state().glob("*.health"):
            path.unlink()  # what was killed again and again would rest
    before = set(sessions.panes())
    done = ps("start")
    make.noted(done.stderr)
    settle()
    check_now()
    shown = set(sessions.panes())
    assert {"b"} <= shown and ("a" in shown or retired("a")), (shown, ended, done.stderr)
    assert ended & shown <= before, "what was ended came back"  # `retire` leaves it running
    late = {"a"} if "exit" in chosen else set()  # what was typed may take its time
    late |= {"own", "other"} if "exit of own" in chosen else set()
    now = {n for n in ("a", "b", "own", "other") if retired(n)}
    assert ended <= now <= ended | late, "ended or revived by start"


def restore(ps, own: str) -> None:
    """Have all three sessions live again, under their own names, for the next case."""
    for name in ("a", own):
        if retired(name):
            ps("start", name)
    if own == "other":
        ps("rename", "other", "own")
    settle()


# ---- Hooks at once ----------------------------------------------------------


def start_hook(name: str, session_id: str):
    """Fire a SessionStart hook the way a session's own claude does, without waiting for it."""
    env = support.environment_of(sessions.agent(name))
    env["CLAUDE_PID"] = str(sessions.agent(name))
    text = {"session_id": session_id, "hook_event_name": "SessionStart", "source": "clear"}
    process = subprocess.Popen(
        [support.sys.executable, "-IS", support.SESSIONS, "hook"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    process.stdin.write(json.dumps(text).encode())
    process.stdin.close()
    return process


def filed(name: str) -> list[str]:
    return (state() / f"{name}.id").read_text().split()


@LIMIT
@pytest.mark.tmux
def test_hooks_of_one_session_at_once_lose_no_id(ps, claude):
    declare(row("api"))
    ps("start")
    assert support.wait_until(lambda: head_id("api"))
    for case in cases("hooks of one session", 1, 12):
        sessions.file_id("api", new_id(9))
        wanted = {new_id(100 + n) for n in range(18)}
        hooks = [start_hook("api", each) for each in wanted]
        assert {h.wait(60) for h in hooks} == {0} and not any(h.stderr.read() for h in hooks)
        with named("hooks of one session", case):
            ids = filed("api")
            assert set(ids) == {*wanted, new_id(9)} and ids[-1] == new_id(9), ids
        check_files(("api",))


@LIMIT
@pytest.mark.tmux
def test_fifty_hooks_of_many_sessions_at_once_file_each_its_own(ps, claude):
    names = [f"s{n}" for n in range(5)]
    declare(*map(row, names))
    ps("start")
    assert support.wait_until(lambda: all(map(head_id, names)), 30)
    first = {name: head_id(name) for name in names}
    hooks = [start_hook(name, new_id(1000 * n + at)) for at in range(10)
             for n, name in enumerate(names, 1)]  # fmt: skip
    assert {h.wait(90) for h in hooks} == {0}
    for n, name in enumerate(names, 1):
        assert set(filed(name)) == {first[name], *(new_id(1000 * n + at) for at in range(10))}
        assert filed(name)[-1] == first[name]
    check_files(names)


# ---- A manifest that is pulled while it is read -------------------------------


@LIMIT
def test_a_reader_during_pulls_sees_the_old_manifest_or_the_new(ps, home):
    def text(version: int) -> str:
        return "".join(f"{row(f's{n}', 'x', f'#{version}')}\n" for n in range(400))

    clone = sessions.clone(text(0))
    versions = {text(0)}
    stop = threading.Event()

    def pull() -> None:
        for version in range(1, 10**6):
            if stop.is_set():
                return
            versions.add(text(version))
            sessions.commit(home / "upstream", text(version))
            subprocess.run(["git", "-C", str(clone), "pull", "-q"], check=True)
            if version % 3 == 0:
                tidy = ("git", "-C", str(clone), "gc", "-q", "--prune=now")
                subprocess.run(tidy, check=True, stderr=subprocess.DEVNULL)

    puller = threading.Thread(target=pull)
    puller.start()
    try:
        for case in cases("pulls", 25, 3):
            with named("pulls", case):
                done = ps("manifest")
                assert done.returncode == 0 and done.stdout in versions, done.stderr
                assert (state() / "manifest.tsv").read_text() in versions
    finally:
        stop.set()
        puller.join()


# ---- Claude's own file, written by two ----------------------------------------


class Writer(threading.Thread):
    """Rewrite ~/.claude.json as Claude does: under its lock, or without one."""

    def __init__(self, path: Path, locked: bool, make: Maker) -> None:
        super().__init__()
        self.path, self.locked, self.make = path, locked, make
        self.stop, self.wrote = threading.Event(), 0

    def run(self) -> None:
        lock = f"{self.path}.lock"
        while not self.stop.is_set():
            if self.locked and not self.take(lock):
                continue
            try:
                self.write()
            finally:
                if self.locked:
                    os.rmdir(lock)
            time.sleep(self.make.random.random() * 0.01)

    def take(self, lock: str) -> bool:
        try:
            os.mkdir(lock)
        except FileExistsError:
            time.sleep(0.002)
            return False
        return True

    def write(self) -> None:
        value = json.loads(self.path.read_bytes())
        value[f"k{self.wrote}"] = self.wrote
        time.sleep(self.make.random.random() * 0.004 if self.locked else 0)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(value, indent=2))
        new.rename(self.path)
        self.wrote += 1


@LIMIT
@pytest.mark.parametrize("locked", [True, False], ids=["with the lock", "without"])
def test_two_writers_of_claudes_file_lose_nothing(home, locked):
    path = home / ".claude.json"
    paths = program.Paths.from_env(os.environ)
    for case in cases(f"two writers {locked}", 1, 5):
        path.write_text('{"projects": {}}')
        writer = Writer(path, locked, case.make)
        writer.start()
        folders = [f"/srv/{n}" for n in range(25)]
        try:
            for folder in folders:
                program.trust_folder(paths, folder)
                json.loads(path.read_bytes())
                time.sleep(case.make.random.random() * 0.02)
        finally:
            writer.stop.set()
            writer.join()
        with named(f"two writers {locked}", case):
            value = json.loads(path.read_bytes())
            lost = [n for n in range(writer.wrote) if value.get(f"k{n}") != n]
            untrusted = [f for f in folders if f not in value["projects"]]
            # Without the lock it can read ours in the moment until a swap is taken back.
            assert writer.wrote > 10 and len(lost) <= (0 if locked else 1), lost
            assert not untrusted or not locked, untrusted
            assert len(untrusted) <= 3, untrusted  # overwritten by one that had read before
    assert not list(home.glob(".claude.json.lock")) and not list(home.glob(".*.tmp"))


# ---- What was found ----------------------------------------------------------


def start_held_at_trust(ps, home):
    """Begin a `start` that has made its plan and waits for Claude's lock on .claude.json."""
    (home / ".claude.json").unlink(missing_ok=True)
    (home / ".claude.json.lock").mkdir()
    process = ps.start("start", env={"PS_TRACE": "1"})
    assert any("list-panes" in line for line in process.stderr)
    return process


@pytest.mark.tmux
def test_a_session_that_is_retired_while_start_works_is_not_launched(ps, claude, home):
    declare(row("a"), row("b"))
    process = start_held_at_trust(ps, home)
    assert ps("retire", "a").returncode == 0
    (home / ".claude.json.lock").rmdir()
    said = process.communicate(timeout=60)[1]
    assert set(sessions.panes()) == {"b"} and process.returncode == 0, said


@pytest.mark.tmux
def test_a_session_that_is_stopped_while_it_is_launched_is_ended(ps, claude, home):
    declare(row("a"))
    (home / "hold").touch()
    shim = home / ".local/bin/tmux"
    wait = "touch ~/held; while [ -e ~/hold ]; do sleep 0.05; done"
    text = f'case "$*" in *source-file*) {wait};; esac\nexec /usr/bin/tmux "$@"\n'
    shim.write_text(f"#!/bin/sh\n{text}")
    shim.chmod(0o755)
    start = ps.start("start")
    assert support.wait_until((home / "held").exists)
    stop = ps.start("stop", "a", env={"PS_TRACE": "1"})
    assert any("list-panes" in line for line in stop.stderr)
    (home / "hold").unlink()
    said = stop.communicate(timeout=60)[1]
    assert stop.returncode == 0, said
    start.communicate(timeout=60)
    assert support.wait_until(lambda: not claudes() and "a" not in sessions.panes()), said
    assert ps("start").returncode == 0 and not claudes()


@pytest.mark.tmux
def test_a_session_that_is_renamed_while_start_works_is_not_launched_twice(ps, claude, home):
    (home / "own").mkdir()
    ps("open", cwd=home / "own")
    sessions.prompt("own", "hello")
    first = head_id("own")
    os.kill(sessions.agent("own"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("own"))
    process = start_held_at_trust(ps, home)
    assert ps("rename", "own", "other").returncode == 0
    (home / ".claude.json.lock").rmdir()
    process.communicate(timeout=60)
    assert ps("start").returncode == 0
    assert set(sessions.panes()) == {"other"} and head_id("other") == first
    assert [p.name for p in state().glob("*.id")] == ["other.id"]


@pytest.mark.tmux
def test_a_row_that_is_its_own_earlier_name_comes_back(ps, claude, home):
    """A rename, a tick that saw the old world, and a rename back left such a row."""
    (home / "own").mkdir()
    state().mkdir(parents=True)
    (state() / "registry.tsv").write_text(f"own\t{home}/own\t-\town\n")
    done = ps("start")
    assert done.returncode == 0 and "own" in sessions.panes(), done.stderr
