"""`rename` and `adopt`: a session under another name, and one that somebody else started."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys

import pytest
import sessions
import support
from sessions import configure, declare, head_id, new_id, row, state

import persistent_sessions as program

pytestmark = pytest.mark.tmux

KINDS = ("id", "run", "event", "exit", "health", "retired", "screen")


@pytest.fixture
def work(ps, home, claude):
    """Return the folder of a live session with a conversation."""
    configure()
    folder = home / "work"
    folder.mkdir()
    assert ps("open", cwd=folder).returncode == 0
    sessions.prompt("work", "hello")
    return folder


def names():
    """Return the session names that anything is filed under."""
    return {p.name.rpartition(".")[0] for p in state().iterdir() if p.suffix[1:] in KINDS}


def registry():
    lines = (state() / "registry.tsv").read_text().splitlines()
    return {line.split("\t")[0] for line in lines if not line.startswith("#")}


# ---- rename ---------------------------------------------------------------


def test_a_live_session_is_renamed_where_it_runs(ps, work):
    first, pid = head_id("work"), sessions.panes()["work"]
    done = ps("rename", "work", "new")
    assert done.returncode == 0, done.stderr
    assert sessions.panes() == {"new": pid} and registry() == names() == {"new"}
    shown = sessions.listed(ps)
    assert set(shown) == {"new"} and shown["new"]["state"] == "LIVE"
    assert shown["new"]["id"] == first and ps("status").stdout == "1 live\n"


def test_a_renamed_session_comes_back_under_its_new_name(ps, work):
    first = head_id("work")
    ps("rename", "work", "new")
    os.kill(sessions.agent("new"), signal.SIGKILL)
    assert support.wait_until(lambda: (state() / "new.exit").exists())
    assert ps("start").returncode == 0
    assert set(sessions.panes()) == {"new"} and head_id("new") == first and names() == {"new"}


def test_a_renamed_session_can_be_ended_for_good(ps, work):
    ps("rename", "work", "new")
    sessions.type_line("new", "/exit")
    assert support.wait_until(lambda: (state() / "new.retired").exists())
    assert ps("start").returncode == 0 and sessions.panes() == {} and "work" not in names()


def test_a_session_renamed_by_us_and_then_in_tmux_can_be_ended_for_good(ps, work, tmux):
    ps("rename", "work", "new")
    tmux("rename-session", "-t", "=new", "newer")
    sessions.type_line("newer", "/exit")
    assert support.wait_until(lambda: (state() / "new.retired").exists())
    assert sessions.pairs("new", "exit")["deliberate"] == "yes"
    assert ps("start").returncode == 0 and sessions.panes() == {}


def test_the_hook_files_a_new_conversation_under_the_new_name(ps, work):
    first = head_id("work")
    ps("rename", "work", "new")
    sessions.type_line("new", "/clear")
    assert support.wait_until(lambda: head_id("new") != first)
    assert names() == {"new"}


@pytest.fixture
def filed(home, claude):
    """File everything a session can have, without anything running."""
    configure()
    state().mkdir(parents=True)
    (state() / "registry.tsv").write_text(f'old\t{home}/old\t["--model", "x"]\n')
    for kind in KINDS:
        (state() / f"old.{kind}").write_text(f"at=1\ndirectory={home}/old\n{kind}=x\n")
    sessions.file_id("old", new_id(1), new_id(2))
    (home / "old").mkdir()


def test_everything_filed_under_a_session_goes_along(ps, filed, home):
    settings = home / ".config" / sessions.NAME / "settings.old.json"
    settings.write_text("{}")
    before = {kind: (state() / f"old.{kind}").read_bytes() for kind in KINDS}
    assert ps("rename", "old", "new").returncode == 0
    assert {kind: (state() / f"new.{kind}").read_bytes() for kind in KINDS} == before
    assert names() == registry() == {"new"} and not settings.exists()
    assert f'new\t{home}/old\t["--model", "x"]\t-\n' in (state() / "registry.tsv").read_text()


def test_a_session_that_ended_keeps_its_way_back(ps, filed):
    (state() / "registry.tsv").unlink()
    assert ps("rename", "old", "new").returncode == 0
    assert sessions.listed(ps)["new"]["state"] == "RETIRED"
    sessions.transcript(new_id(1))
    assert ps("start", "new").returncode == 0 and head_id("new") == new_id(1)


def test_no_moment_is_without_the_conversation(filed, home, monkeypatch):
    """Cut the rename off at each of its writes: one of the names always has id and row."""

    class Cut(Exception):
        pass

    paths = program.Paths.from_env(os.environ)
    start = program.Start(paths, program.choose_config({}), (), True)
    spec = program.Spec("old", f"{home}/old")
    steps = []

    def watch(name):
        real = getattr(os, name)

        def step(*args):
            steps.append(args)
            if len(steps) == limit:
                raise Cut
            return real(*args)

        monkeypatch.setattr(os, name, step)

    for name in ("link", "rename", "unlink"):
        watch(name)
    limit = 3
    with pytest.raises(Cut):
        program.move_session(start, spec, "new", "", "")
    assert registry() == {"old"} and head_id("old") == new_id(1)
    for name in KINDS:
        program.remove(f"{state()}/new.{name}")
    steps, limit = [], len(KINDS) + 2  # after the registry
    with pytest.raises(Cut):
        program.move_session(start, spec, "new", "", "")
    assert registry() == {"new"} and head_id("new") == new_id(1)


@pytest.mark.parametrize("what", ["the disk", "tmux"])
def test_a_rename_that_fails_moves_nothing(ps, work, tmux, monkeypatch, what):
    kept = {p.name: p.read_bytes() for p in state().iterdir() if p.is_file()}
    before = sessions.panes()
    if what == "tmux":  # somebody took the name after it was looked at
        tmux("new-session", "-d", "-s", "new", "sleep", "300")
        before = sessions.panes()
    else:
        made = []

        def link(*args):
            if made:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            made.append(args)
            real(*args)

        real = os.link
        monkeypatch.setattr(os, "link", link)
    start = program.Start(program.Paths.from_env(os.environ), program.choose_config({}), (), True)
    socket = sessions.pairs("work", "run")["socket"]
    with pytest.raises((OSError, program.Failure)):
        program.move_session(start, program.Spec("work", str(work)), "new", socket, "work")
    assert sessions.panes() == before
    assert {p.name: p.read_bytes() for p in state().iterdir() if p.is_file()} == kept


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("api", "new", "declared in the manifest"),
        ("old", "api", "taken"),
        ("old", "old", "taken"),
        ("old", "gone", "taken"),
        ("old", "stale", "taken"),
        ("old", "shown", "taken"),
        ("old", "a.b", "must not hold"),
        ("old", "=x", "must not start"),
        ("old", "", "an empty name"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused_and_nothing_moves(ps, filed, tmux, old, new, why):
    declare(row("api"))
    (state() / "gone.retired").write_text("directory=/x\n")
    sessions.file_id("stale", new_id(3))
    tmux("new-session", "-d", "-s", "shown", "sleep", "300")
    before = {p.name for p in state().iterdir()}
    done = ps("rename", old, new)
    assert done.returncode == 1 and why in done.stderr, done.stderr
    assert before <= {p.name for p in state().iterdir()} and registry() == {"old"}


def test_a_foreign_tmux_session_of_the_old_name_is_left_alone(ps, filed, tmux):
    (state() / "old.retired").unlink()
    tmux("new-session", "-d", "-s", "old", "sleep", "300")
    assert ps("rename", "old", "new").returncode == 0
    assert set(sessions.panes()) == {"old"} and registry() == {"new"}


# ---- adopt ----------------------------------------------------------------


@pytest.fixture
def found(home, claude, tmux):
    """Start a claude in a tmux session by hand, and return its folder."""
    configure()
    folder = home / "found"
    folder.mkdir()
    start = f"exec {claude} --model opus"
    trusted = {"projects": {str(home): {"hasTrustDialogAccepted": True}}}
    (home / ".claude.json").write_text(json.dumps(trusted))
    tmux("new-session", "-d", "-x", "200", "-y", "50", "-s", "mine", "-c", folder, start)
    sessions.prompt("mine", "hello")
    return folder


def claude_pid():
    (path,) = (sessions.claude_folder() / "sessions").glob("*.json")
    return int(path.stem)


def test_a_claude_that_runs_is_adopted_in_place(ps, found):
    pid = claude_pid()
    done = ps("adopt", "mine")
    assert done.returncode == 0 and str(found) in done.stderr, done.stderr
    assert claude_pid() == pid and support.alive(pid)
    shown = sessions.listed(ps)["mine"]
    assert shown["state"] == "LIVE" and shown["directory"] == str(found)
    assert head_id("mine") == shown["id"] != ""
    assert '["--model", "opus"]' in (state() / "registry.tsv").read_text()


def test_an_adopted_session_comes_back_with_a_supervisor(ps, found):
    ps("adopt", "mine")
    first = head_id("mine")
    os.kill(claude_pid(), signal.SIGKILL)
    assert support.wait_until(lambda: "mine" not in sessions.panes())
    assert ps("start").returncode == 0
    assert head_id("mine") == first and sessions.agent("mine")
    with open(f"/proc/{sessions.agent('mine')}/cmdline", encoding="utf-8") as f:
        argv = f.read().split("\0")
    assert first in argv and "opus" in argv


def test_adopting_twice_changes_nothing(ps, found):
    ps("adopt", "mine")
    before = (state() / "registry.tsv").read_text(), (state() / "mine.id").read_text()
    assert ps("adopt", "mine").returncode == 0
    assert ((state() / "registry.tsv").read_text(), (state() / "mine.id").read_text()) == before


def test_a_session_of_ours_is_not_adopted_again(ps, work):
    before = (state() / "registry.tsv").read_text()
    done = ps("adopt", "work")
    assert done.returncode == 0 and "already" in done.stderr
    assert (state() / "registry.tsv").read_text() == before


@pytest.mark.parametrize("name, why", [("none", "no tmux session"), ("shell", "no claude runs")])
def test_what_is_no_claude_is_not_adopted(ps, claude, tmux, name, why):
    configure()
    tmux("new-session", "-d", "-s", "shell", "sleep", "300")
    done = ps("adopt", name)
    assert done.returncode == 1 and why in done.stderr
    assert not (state() / "registry.tsv").exists()


def test_a_name_of_another_folder_is_not_taken_over(ps, found):
    declare(row("mine", "elsewhere"))
    done = ps("adopt", "mine")
    assert done.returncode == 1 and "taken by" in done.stderr
    assert "rename-session" in done.stderr and head_id("mine") == ""


def test_a_session_is_renamed_where_the_file_system_has_no_links(ps, home, claude):
    sessions.configure()
    (home / "work").mkdir()
    ps("open", cwd=home / "work")
    sessions.prompt("work", "hello")
    first = sessions.head_id("work")
    deny = os.path.join(support.TESTS, "fakes", "deny_call.py")
    argv = [sys.executable, deny, "link", "EPERM", sys.executable, "-IS", support.SESSIONS]
    done = subprocess.run([*argv, "rename", "work", "api"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sessions.head_id("api") == first and not (sessions.state() / "work.id").exists()
