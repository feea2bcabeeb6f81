"""A conversation follows its session, whatever hooks, tmux and a person at it did meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
import sessions
import support
from sessions import claude_folder, declare, head_id, new_id, row, state

pytestmark = pytest.mark.tmux


def current(name: str) -> str:
    """Return the conversation that a row's claude is in, from claude's own record."""
    path = claude_folder() / "sessions" / f"{sessions.agent(name)}.json"
    return str(json.loads(path.read_text() or "{}").get("sessionId", ""))


def clear(name: str, shown: str = "") -> str:
    """Begin a new conversation in a row's session and say something in it; return its id."""
    before, shown = current(name), shown or name
    sessions.type_line(shown, "/clear")
    assert support.wait_until(lambda: current(name) != before)
    sessions.prompt(shown, "after the clearing")
    return current(name)


def end_all(tmux, *names: str) -> None:
    """Have the server killed, and claude end as it does then: its records are gone."""
    tmux("kill-server")
    assert support.wait_until(lambda: all(map(sessions.ended, names)), 20)
    assert support.wait_until(lambda: not sessions.claudes(), 20)


def is_back(ps, **ids: str) -> None:
    """Check that a start brings each row back in its conversation and its own folder."""
    done = ps("start")
    assert done.returncode == 0, done.stderr
    for name, session_id in ids.items():
        assert f" {name}: LAUNCH: resumed {session_id}" in done.stderr, (session_id, done.stderr)
        folder = os.readlink(f"/proc/{sessions.agent(name)}/cwd")
        assert folder == os.path.join(os.environ["HOME"], name)
    assert set(sessions.panes()) == set(ids)


@pytest.fixture
def pair(ps, claude):
    """Have two sessions with a conversation each; return the ids."""
    declare(row("api"), row("web"))
    ps("start")
    for name in ("api", "web"):
        sessions.prompt(name, f"hello {name}")
    return head_id("api"), head_id("web")


@pytest.fixture
def api(ps, claude):
    """Have one session with a conversation; return its id."""
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    return head_id("api")


# ---- Without hooks --------------------------------------------------------


def test_without_hooks_a_tick_files_the_conversation(ps, claude, home, tmux):
    (home / ".claude").mkdir(exist_ok=True)
    (home / ".claude/settings.json").write_text('{"disableAllHooks": true}')
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    first = current("api")
    assert head_id("api") == ""
    ps("start")
    assert head_id("api") == first
    second = clear("api")
    ps("start")
    assert head_id("api") == second != first
    end_all(tmux, "api")
    is_back(ps, api=second)


# ---- Names ----------------------------------------------------------------


def test_a_crash_before_the_next_tick_finds_what_a_renamed_session_said(ps, claude, tmux):
    declare(row("old"))
    ps("start")
    sessions.prompt("old", "hello")
    tmux("rename-session", "-t", "=old", "new")
    second = clear("old", "new")
    assert head_id("new") == second
    end_all(tmux, "old")
    is_back(ps, old=second)


def test_a_session_of_the_persons_that_shows_the_pane_is_no_name_of_it(ps, pair, tmux):
    tmux("new-session", "-d", "-t", "api", "-s", "phone")
    tmux("kill-session", "-t", "=api")
    tmux("new-session", "-d", "-s", "mine", "sleep 300")
    tmux("join-pane", "-s", "=web:", "-t", "=mine:")
    api, web = clear("api", "phone"), clear("web", "mine")
    done = ps("start")
    assert done.returncode == 0 and "LIVE: as 'phone'" in done.stderr, done.stderr
    assert (head_id("api"), head_id("web")) == (api, web)
    assert not (state() / "phone.id").exists() and not (state() / "mine.id").exists()
    end_all(tmux, "api", "web")
    is_back(ps, api=api, web=web)


def test_a_name_that_is_another_rows_takes_nothing_of_it(ps, pair, tmux):
    tmux("kill-session", "-t", "=web")
    assert support.wait_until(lambda: sessions.ended("web"))
    tmux("rename-session", "-t", "=api", "web")
    done = ps("start")
    assert f" web: LAUNCH: resumed {pair[1]}" in done.stderr, done.stderr
    assert " api: LIVE: as 'web'" in done.stderr and done.returncode == 0
    api = clear("api", "web")
    ps("start")
    assert (head_id("api"), head_id("web")) == (api, pair[1])
    ps("stop", "web")
    assert support.wait_until(lambda: sessions.ended("web")) and not sessions.ended("api")
    assert ps("start", "web").returncode == 0
    end_all(tmux, "api", "web")
    is_back(ps, api=api, web=pair[1])


def test_names_that_were_swapped_swap_no_conversations(ps, pair, tmux):
    for old, new in (("api", "x"), ("web", "api"), ("x", "web")):
        tmux("rename-session", "-t", f"={old}", new)
    ps("start")
    api, web = clear("api", "web"), clear("web", "api")
    ps("start")
    end_all(tmux, "api", "web")
    is_back(ps, api=api, web=web)


def test_a_pane_that_was_moved_into_another_row_keeps_its_own(ps, pair, tmux):
    tmux("join-pane", "-s", "=web:", "-t", "=api:")
    web = clear("web", "api")
    ps("start")
    assert (head_id("api"), head_id("web")) == (pair[0], web)
    end_all(tmux, "api", "web")
    is_back(ps, api=pair[0], web=web)


def test_the_last_of_several_names_is_the_one(ps, api, tmux):
    for old, new in (("api", "b"), ("b", "c")):
        tmux("rename-session", "-t", f"={old}", new)
        done = ps("start")
        assert done.returncode == 0, done.stderr
    done = ps("start")
    assert done.returncode == 0 and " b: " not in done.stderr, done.stderr
    last = clear("api", "c")
    tmux("rename-session", "-t", "=c", "api")
    assert ps("start").returncode == 0
    done = ps("start")
    assert done.returncode == 0 and done.stderr.count("LIVE") == 1, done.stderr
    assert head_id("api") == last
    end_all(tmux, "api")
    is_back(ps, api=last)


def test_both_names_of_a_renamed_session_are_retired_and_named(ps, api, tmux):
    tmux("rename-session", "-t", "=api", "b")
    ps("start")
    done = ps("retire", "api")
    assert "api" in done.stderr and " b" in done.stderr, done.stderr
    end_all(tmux, "api")
    done = ps("start")
    assert not sessions.panes() and done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["start api", "open"])
def test_a_renamed_session_that_crashed_comes_back_by_either_name(ps, api, tmux, home, how):
    tmux("rename-session", "-t", "=api", "b")
    ps("start")
    end_all(tmux, "api")
    done = ps(*how.split(), cwd=home / "api")
    assert done.returncode == 0 and f"resumed {api}" in done.stderr, done.stderr
    assert set(sessions.panes()) == {"b"}
    assert ps("open", cwd=home / "api").returncode == 0


# ---- Others in the same place ---------------------------------------------


def test_a_claude_in_a_second_window_is_not_the_session(ps, pair, tmux, home, claude):
    tmux("new-window", "-t", "=api:", "-c", str(home / "api"), str(claude))
    sessions.prompt("api", "of no concern")
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    ps("start")
    assert head_id("api") == pair[0]
    end_all(tmux, "api", "web")
    is_back(ps, api=pair[0], web=pair[1])


def test_a_record_that_does_not_say_when_its_process_began_holds_a_conversation(ps, claude):
    declare(row("api"))
    sessions.transcript(new_id(1))
    sessions.file_id("api", new_id(1))
    with subprocess.Popen(["sleep", "300"]) as other:
        sessions.record(other.pid, new_id(1), procStart=None)
        done = ps("start")
        assert done.returncode == 1 and f"HELD: pid {other.pid} writes" in done.stderr, done.stderr
        other.kill()
    assert not sessions.panes()


def test_a_folder_of_the_same_name_gets_no_conversation_of_another(ps, pair, tmux, home):
    end_all(tmux, "api", "web")
    declare(row("web"))
    ps("start")
    (home / "other/api").mkdir(parents=True)
    done = ps("open", cwd=home / "other/api")
    assert done.returncode == 0 and pair[0] not in done.stderr, done.stderr
    kept = [p.read_text() for p in (state() / "attic").glob("api.*.id")]
    assert kept == [f"{pair[0]}\n"]


@pytest.mark.parametrize("named", ["whole", "from its folder"])
def test_a_session_with_a_config_folder_of_its_own_is_not_begun_anew(ps, claude, home, named):
    sessions.configure()
    (home / "work").mkdir()
    (home / ".claude/projects").mkdir(parents=True)
    alt = {"CLAUDE_CONFIG_DIR": str(home / "alt")}
    given = alt if named == "whole" else {"CLAUDE_CONFIG_DIR": "../alt"}
    assert ps("open", cwd=home / "work", env=given).returncode == 0
    sessions.prompt("work", "hello")
    first = head_id("work")
    os.kill(sessions.agent("work"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("work"))
    done = ps("start")
    assert done.returncode == 1 and f"in {home}/alt (set CLAUDE_CONFIG_DIR" in done.stderr
    done = ps("start", env=alt)
    assert f"LAUNCH: resumed {first}" in done.stderr and done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop"])
def test_one_transcript_that_cannot_be_read_keeps_no_other_session_down(ps, claude, kind):
    declare(row("api"), row("web"))
    for name, number in (("api", 1), ("web", 2)):
        path = sessions.transcript(new_id(number))
        sessions.file_id(name, new_id(number))
    path.unlink()
    {"folder": path.mkdir, "fifo": lambda: os.mkfifo(path), "loop": lambda: path.symlink_to(path)}[
        kind
    ]()
    (state() / "gone.retired").mkdir()
    done = ps("start")
    assert done.returncode == 1 and f" api: LAUNCH: resumed {new_id(1)}" in done.stderr
    assert f" web: UNKNOWN: {path}: " in done.stderr and set(sessions.panes()) == {"api"}


# ---- What `open --resume` does not do --------------------------------------


def test_a_refused_open_leaves_no_row(ps, pair, home):
    (home / "other").mkdir()
    done = ps("open", "--resume", pair[0], cwd=home / "other")
    assert done.returncode == 1 and "HELD" in done.stderr
    done = ps("start")
    assert done.returncode == 0 and "other" not in done.stderr, done.stderr


def test_a_live_session_is_not_shown_in_place_of_another_conversation(ps, pair, home):
    sessions.transcript(new_id(7))
    done = ps("open", "--resume", new_id(7), cwd=home / "api")
    hint = f"open --new --resume {new_id(7)}"
    assert done.returncode == 1 and "lives in another conversation" in done.stderr, done.stderr
    assert hint in done.stderr
    assert ps("open", "--resume", pair[0], cwd=home / "api").returncode == 0  # it is this one


def test_a_job_holds_a_conversation_against_open_too(ps, claude, home):
    sessions.configure()
    sessions.transcript(new_id(1))
    job = home / ".claude/jobs/4f2a"
    job.mkdir(parents=True)
    (job / "state.json").write_text(json.dumps({"state": "done", "sessionId": new_id(1)}))
    (home / "work").mkdir()
    done = ps("open", "--resume", new_id(1), cwd=home / "work")
    assert done.returncode == 1 and "claude stop 4f2a" in done.stderr, done.stderr


# ---- Consent ----------------------------------------------------------------


def test_a_claude_of_somebody_elses_in_a_session_of_that_name_gets_no_consent(
    ps, claude, home, tmux
):
    declare(row("api"))
    (home / "strange").mkdir()
    tmux("new-session", "-d", "-s", "api", "-c", str(home / "strange"), str(claude))
    assert support.wait_until(lambda: "trust" in sessions.screen("api"))
    done = ps("trust", "api")
    assert done.returncode == 1 and "not started by us" in done.stderr, done.stderr
    settings = home / ".claude.json"
    assert not settings.exists() or str(home) not in settings.read_text()


def test_consent_is_typed_into_no_other_pane(ps, claude, home, tmux):
    sessions.configure(trust={"open": False})
    (home / "work").mkdir()
    ps("open", cwd=home / "work")
    tmux("split-window", "-d", "-t", "=work:", f"cat >{home}/typed")
    tmux("set-option", "-w", "-t", "=work:", "synchronize-panes", "on")
    done = ps("trust", "work")
    assert done.returncode == 0 and "answered" in done.stderr, done.stderr
    tmux("send-keys", "-t", "=work:", "-l", "both")  # what a person types goes to both again
    tmux("send-keys", "-t", "=work:", "Enter")
    assert support.wait_until(lambda: (home / "typed").read_text() == "both\n")
