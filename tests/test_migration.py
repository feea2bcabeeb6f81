"""What an older installation of shell scripts left in the same folder is taken over."""

from __future__ import annotations

import json
import os
import signal

import pytest
import sessions
import support
from sessions import configure, head_id, new_id, state

import persistent_sessions as program

pytestmark = pytest.mark.tmux


@pytest.fixture
def older(home, claude):
    """Leave what the older installation left: two columns, one id each, an empty mark."""
    configure()
    state().mkdir(parents=True)
    rows = [f"{name}\t{home}/{name}\n" for name in ("live", "down", "ended")]
    (state() / "registry.tsv").write_text("".join(rows))
    for number, name in enumerate(("live", "down", "ended", "nobody"), 1):
        (home / name).mkdir()
        sessions.transcript(new_id(number))
        (state() / f"{name}.id").write_text(f"{new_id(number)}\n")
    line = "rc=0 signalled=0 system=running user=running at=2026-01-01T00:00:00Z\n"
    (state() / "ended.exit").write_text(line)
    (state() / "down.exit").write_text(line.replace("signalled=0", "signalled=1"))
    (state() / "ended.retired").touch()
    trusted = {"projects": {str(home): {"hasTrustDialogAccepted": True}}}
    (home / ".claude.json").write_text(json.dumps(trusted))
    return home


@pytest.fixture
def live(older, tmux, claude):
    """Run a claude in a tmux session as the older installation did; return its pid."""
    start = f"{claude} --resume {new_id(1)}; exec sh"
    tmux("new-session", "-d", "-x", "200", "-y", "50", "-s", "live", "-c", older / "live", start)
    sessions.prompt("live", "again")
    (path,) = (sessions.claude_folder() / "sessions").glob("*.json")
    return int(path.stem)


def install(ps):
    done = ps("install")
    assert "Traceback" not in done.stderr and "migration" not in done.stderr, done.stderr
    return done


def test_its_sessions_come_back_in_their_conversations(ps, older):
    install(ps)
    assert ps("start").returncode == 0
    assert set(sessions.panes()) == {"live", "down"}
    assert (head_id("live"), head_id("down")) == (new_id(1), new_id(2))


def test_what_was_ended_stays_ended_and_can_be_brought_back(ps, older):
    install(ps)
    shown = sessions.listed(ps)["ended"]
    assert shown["state"] == "RETIRED" and shown["directory"] == f"{older}/ended"
    assert "ended" not in (state() / "registry.tsv").read_text()
    assert ps("start", "ended").returncode == 0 and head_id("ended") == new_id(3)


def test_an_end_whose_folder_nobody_wrote_down_stands_in_no_folders_way(ps, claude, home):
    sessions.configure()
    sessions.file_id("gone", new_id(5))
    sessions.transcript(new_id(5))
    (state() / "gone.retired").touch()  # its row was dropped before marks held one
    assert sessions.listed(ps) == {}
    for name in ("work", "gone"):
        (home / name).mkdir()
        done = ps("open", cwd=home / name)
        assert done.returncode == 0 and f"{name}: a new conversation" in done.stderr, done.stderr
    assert not (state() / "gone.retired").exists()
    assert support.wait_until(lambda: head_id("gone") != new_id(5))
    assert new_id(5) in (state() / "gone.id").read_text()


def test_an_id_of_no_session_is_kept_in_the_attic(ps, older):
    install(ps)
    assert not (state() / "nobody.id").exists()
    (kept,) = (state() / "attic").iterdir()
    assert kept.read_text() == f"{new_id(4)}\n"


def test_no_id_is_put_away_while_a_row_cannot_be_read(ps, older):
    sessions.declare("nobody /space/for/a/tab")
    done = ps("install")
    assert head_id("nobody") == new_id(4) and "install: migration" in done.stderr


def test_a_session_opened_while_install_works_keeps_its_id(ps, older):
    """Its world was read before `open` made the session."""
    before = program.World(())
    (older / "late").mkdir()
    assert ps("open", cwd=older / "late").returncode == 0
    assert support.wait_until(lambda: head_id("late"))
    stale = program.read_stale_ids(program.Paths.from_env(os.environ), before)
    assert "late" not in stale and "nobody" in stale


def test_a_live_session_is_left_alone_and_its_conversation_followed(ps, live):
    pane = sessions.panes()["live"]
    sessions.type_line("live", "/clear")
    sessions.prompt("live", "fresh")
    install(ps)
    assert support.alive(live) and sessions.panes()["live"] == pane
    assert head_id("live") != new_id(1)
    assert new_id(1) in (state() / "live.id").read_text()
    assert sessions.listed(ps)["live"]["state"] == "LIVE" and not (state() / "live.run").exists()


def test_a_live_session_gets_its_supervisor_at_its_next_launch(ps, live):
    install(ps)
    first = head_id("live")
    os.kill(live, signal.SIGKILL)
    support.run_tmux("kill-session", "-t", "=live")
    assert ps("start", "live").returncode == 0
    assert sessions.agent("live") and head_id("live") == first


def test_how_an_older_session_ended_can_still_be_read(ps, older):
    assert "rc=0 signalled=1 system=running" in ps("logs", "down").stdout


def test_a_second_installation_changes_nothing(ps, older):
    install(ps)
    kept = {p.name: p.read_bytes() for p in state().iterdir() if p.is_file()}
    install(ps)
    assert {p.name: p.read_bytes() for p in state().iterdir() if p.is_file()} == kept


def test_two_ids_of_one_name_are_kept_in_the_attic_both(home):
    paths = program.Paths.from_env(os.environ)
    for number in (1, 2):
        sessions.file_id("api", new_id(number))
        program.to_attic(paths, "api")
    kept = sorted(path.read_text() for path in (state() / "attic").iterdir())
    assert kept == [f"{new_id(1)}\n", f"{new_id(2)}\n"]
