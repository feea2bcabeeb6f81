"""`open` and the `claude` function: a plain claude starts, re-attaches, resumes."""

from __future__ import annotations

import os
import signal

import pytest
import sessions
import support
from sessions import configure, declare, head_id, new_id, row, state

import persistent_sessions as program

pytestmark = pytest.mark.tmux


@pytest.fixture
def work(home, claude):
    configure()
    folder = home / "work"
    folder.mkdir()
    return folder


def end_by_crash(name):
    os.kill(sessions.agent(name), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended(name))


def test_open_registers_the_session_of_the_folder_and_says_that_it_trusts_it(ps, work):
    done = ps("open", cwd=work)
    assert done.returncode == 0 and f"trusts {work}" in done.stderr
    assert "work" in (state() / "registry.tsv").read_text() and "work" in sessions.panes()


def test_a_second_open_leaves_the_first_alone(ps, work):
    ps("open", cwd=work)
    pid = sessions.panes()["work"]
    assert ps("open", cwd=work).returncode == 0
    assert sessions.panes() == {"work": pid}


@pytest.mark.parametrize("words", [(), ("api",)])
def test_a_live_session_whose_row_is_gone_is_opened_as_what_it_is(ps, home, claude, words):
    declare(row("api"), claude={"start_args": ["--model", "opus"]})
    assert ps("start").returncode == 0
    sessions.prompt("api", "hello")
    first, live = head_id("api"), sessions.panes()
    declare(row("web"))  # with the usual arguments again, which skip permissions
    done = ps("open", *words, cwd=home / "api")
    assert done.returncode == 0 and "it is opened now and will come back" in done.stderr
    assert sessions.panes() == live
    assert '["--model", "opus"]' in (state() / "registry.tsv").read_text()
    end_by_crash("api")
    ps("start")
    assert support.wait_until(lambda: sessions.panes().keys() == {"api", "web"})
    assert head_id("api") == first and "no longer" not in str(sessions.listed(ps))


@pytest.mark.parametrize(
    "folder, name", [("my.proj", "my_proj"), ("a:b", "a_b"), (".dot", "_dot"), ("ünï", "ünï")]
)
def test_a_folder_gives_a_name_that_tmux_keeps(ps, home, claude, folder, name):
    configure()
    (home / folder).mkdir()
    assert ps("open", cwd=home / folder).returncode == 0
    pid = sessions.panes()[name]
    assert ps("open", cwd=home / folder).returncode == 0
    assert sessions.panes() == {name: pid} and sessions.listed(ps)[name]["state"] == "LIVE"
    assert (state() / f"{name}.id").exists()


def test_the_home_directory_is_named_after_its_user(ps, home, claude):
    configure()
    done = ps("open", cwd=home)
    assert done.returncode == 0 and os.environ["USER"] in sessions.panes()
    assert "every folder below it" in done.stderr


def test_two_folders_of_one_name_are_two_sessions(ps, home, claude):
    configure()
    for parent in ("one", "two", "three/one"):
        (home / parent / "app").mkdir(parents=True)
        assert ps("open", cwd=home / parent / "app").returncode == 0
    assert set(sessions.panes()) == {"app", "two-app", "one-app"}


def test_a_linked_folder_is_the_folder_it_points_to(ps, work, home):
    (home / "link").symlink_to(work)
    ps("open", cwd=work)
    assert ps("open", cwd=home / "link", env={"PWD": str(home / "link")}).returncode == 0
    assert set(sessions.panes()) == {"work"}


def test_a_name_that_something_else_uses_in_tmux_is_not_taken(ps, work, tmux):
    tmux("new-session", "-d", "-s", "work", "sleep", "300")
    pid = sessions.panes()["work"]
    assert ps("open", cwd=work).returncode == 0
    assert sessions.panes()["work"] == pid and "home-work" in sessions.panes()


def test_a_declared_row_in_the_folder_wins(ps, claude, home):
    log = sessions.argv_log()
    declare(row("api", "shared"), row("web", "shared"))
    assert ps("open", cwd=home / "shared").returncode == 0
    assert set(sessions.panes()) == {"api"}
    assert "--dangerously-skip-permissions" in sessions.launches(log)[0]["argv"]
    assert ps("open", "web", cwd="/").returncode == 0
    assert set(sessions.panes()) == {"api", "web"}
    assert not (state() / "registry.tsv").exists()


def test_a_session_keeps_the_rights_it_was_opened_with(ps, work):
    log = sessions.argv_log()
    ps("open", cwd=work)
    sessions.prompt("work", "hello")
    end_by_crash("work")
    assert ps("start").returncode == 0
    assert [("--dangerously-skip-permissions" in r["argv"]) for r in sessions.launches(log)] == [
        False,
        False,
    ]


def test_a_crashed_session_is_resumed_by_open(ps, work):
    ps("open", cwd=work)
    sessions.prompt("work", "hello")
    first = head_id("work")
    end_by_crash("work")
    assert ps("open", cwd=work).returncode == 0
    assert head_id("work") == first


def test_an_ended_session_gets_a_new_conversation_and_loses_its_mark(ps, work):
    ps("open", cwd=work)
    sessions.prompt("work", "hello")
    first = head_id("work")
    sessions.type_line("work", "/exit")
    assert support.wait_until(lambda: (state() / "work.retired").exists())
    assert support.wait_until(lambda: "\nwork\t" not in (state() / "registry.tsv").read_text())
    assert ps("open", cwd=work).returncode == 0
    assert support.wait_until(lambda: head_id("work") != first)
    assert not (state() / "work.retired").exists() and first in (state() / "work.id").read_text()


def test_a_refused_open_revokes_no_deliberate_end(ps, work, tmux):
    ps("open", cwd=work)
    sessions.type_line("work", "/exit")
    assert support.wait_until(lambda: sessions.ended("work") and "work" not in sessions.panes())
    files = state() / "work.retired", state() / "registry.tsv"
    before = [path.read_bytes() for path in files]
    tmux("new-session", "-d", "-s", "work", "sleep", "300")
    done = ps("open", "work")
    assert done.returncode == 1 and "work: FOREIGN" in done.stderr, done.stderr
    assert [path.read_bytes() for path in files] == before


def test_the_old_conversation_can_be_taken_up_again(ps, work):
    ps("open", cwd=work)
    sessions.prompt("work", "hello")
    first = head_id("work")
    sessions.type_line("work", "/exit")
    assert support.wait_until(lambda: (state() / "work.retired").exists())
    assert support.wait_until(lambda: sessions.ended("work"))
    assert ps("open", "--resume", cwd=work).returncode == 0
    assert head_id("work") == first and sessions.pairs("work", "run")["resume"] == first


def test_a_named_conversation_can_be_resumed_and_a_missing_one_is_refused(ps, work):
    sessions.transcript(new_id(7))
    done = ps("open", "--resume", new_id(8), cwd=work)
    assert done.returncode == 1 and sessions.panes() == {}
    assert ps("open", "--resume", new_id(7), cwd=work).returncode == 0
    assert support.wait_until(lambda: head_id("work") == new_id(7))


def test_new_opens_a_second_session_in_the_folder(ps, work):
    ps("open", cwd=work)
    assert ps("open", "--new", "other", cwd=work).returncode == 0
    assert set(sessions.panes()) == {"work", "other"}
    assert ps("open", "--new", "other", cwd=work).returncode == 1


def test_two_opens_at_the_same_moment_make_one_process(ps, work):
    log = sessions.argv_log()
    both = [ps.start("open", cwd=work) for _ in range(4)]
    assert [process.wait(60) for process in both] == [0] * 4
    assert len(sessions.launches(log)) == 1 and set(sessions.panes()) == {"work"}


def test_a_tick_in_the_middle_of_an_open_makes_no_second_process(ps, work):
    log = sessions.argv_log()
    sessions.knob(delay=0.5)
    one = ps.start("open", cwd=work)
    assert support.wait_until(lambda: "work" in sessions.panes())
    done = ps("start")
    assert one.wait(60) == 0 and done.returncode == 0
    assert len(sessions.launches(log)) == 1


def test_what_open_starts_has_the_shells_environment(ps, work, tmux):
    tmux("new-session", "-d", "-s", "old", "sleep", "300")
    log = sessions.argv_log()
    env = {"VIRTUAL_ENV": "/venv", "https_proxy": "http://127.0.0.1:3128"}
    assert ps("open", cwd=work, env=env).returncode == 0
    assert env.items() <= sessions.launches(log)[0]["env"].items()


def test_a_folder_of_another_user_is_not_trusted(ps, work):
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to give a folder away")
    os.chown(work, 65534, 65534)
    sessions.knob()
    done = ps("open", cwd=work)
    assert "belongs to another user" in done.stderr
    assert done.returncode == 1 and "trust" in done.stderr


@pytest.mark.parametrize("why", ["another user's", "turned off"])
@pytest.mark.parametrize("words", [("start",), ("install",)])
def test_what_open_does_not_trust_is_not_trusted_later(ps, work, words, why):
    if why == "turned off":
        configure(trust={"open": False})
    elif os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to give a folder away")
    else:
        os.chown(work, 65534, 65534)
    state().mkdir(0o700, parents=True)
    (state() / "registry.tsv").write_text(f"work\t{work}\t-\t-\n")
    done = ps(*words)
    assert done.returncode == 1 and f"trust of {work}" not in done.stderr, done.stderr
    path = work.parent / ".claude.json"
    assert not path.exists() or str(work) not in path.read_text()
    assert words != ("start",) or "folder-trust prompt (try:" in done.stderr, done.stderr


def test_trust_can_be_turned_off(ps, work):
    configure(trust={"open": False})
    done = ps("open", cwd=work)
    assert done.returncode == 1 and "BLOCKED" in done.stderr
    assert sessions.listed(ps)["work"]["state"] == "BLOCKED"


def test_a_held_conversation_is_refused_with_the_pid(ps, work):
    ps("open", cwd=work)
    sessions.prompt("work", "hello")
    first = head_id("work")
    end_by_crash("work")
    sessions.record(os.getpid(), first, cwd=str(work))
    done = ps("open", cwd=work)
    assert done.returncode == 1 and f"pid {os.getpid()}" in done.stderr


@pytest.mark.parametrize("term", ["xterm-kitty-absent", "", "dumb", "xterm-256color"])
def test_a_terminal_type_unknown_here_is_replaced(work, terminal, term):
    shell = terminal(*support_argv("open"), cwd=work, env={"TERM": term}, size=(30, 100))
    shell.expect("❯", 20)
    support.run_tmux("detach-client", "-s", "=work")
    assert shell.wait(20) == 0


def support_argv(*args):
    return [support.sys.executable, "-IS", support.SESSIONS, *args]


def test_open_in_a_removed_folder_is_one_line(ps, work):
    script = f'cd {work} && rmdir {work} && exec "$@"'
    done = support.subprocess.run(
        ["sh", "-c", script, "sh", *support_argv("open")], capture_output=True, text=True
    )
    assert done.returncode == 1 and "this folder was removed" in done.stderr


def test_attach_without_a_terminal_or_a_session_is_one_line(ps, work):
    assert ps("attach").returncode == 1
    assert "no live session" in ps("attach", "none").stderr


def test_where_claude_never_kept_a_conversation_a_person_gets_a_new_one(ps, work):
    ps("open", cwd=work)
    assert support.wait_until(lambda: head_id("work"))
    end_by_crash("work")
    assert not (sessions.claude_folder() / "projects").exists()
    done = ps("start")
    assert done.returncode == 1 and "open work" in done.stderr
    done = ps("open", cwd=work)
    assert done.returncode == 0 and "a new conversation" in done.stderr


def test_a_session_that_lives_in_another_folder_is_not_shown_as_this_one_s(ps, claude, home):
    declare(row("api", "one"))
    assert ps("start").returncode == 0
    declare(row("api", "two"))
    done = ps("open", cwd=home / "two")
    assert done.returncode == 1 and f"api: it lives in {home}/one, not here" in done.stderr
    assert ps("open", "api", cwd=home / "two").returncode == 0
    (home / "two").rmdir()
    (home / "one").rename(home / "two")
    assert ps("open", cwd=home / "two").returncode == 0


def test_a_supervisor_is_in_its_folder_whatever_that_is_called(ps, claude, home):
    """tmux would expand a "#" in the folder that a session is to begin in."""
    declare(row("api", "c#"))
    assert ps("start", cwd="/").returncode == 0
    run_ = sessions.pairs("api", "run")
    assert os.readlink(f"/proc/{run_['pid']}/cwd") == f"{home}/c#"


@pytest.mark.parametrize("folder", ["b\nc", "d\te", "x\x01", "\udcff"])
def test_a_folder_that_no_row_can_hold_is_refused(ps, claude, home, folder):
    configure()
    (home / folder).mkdir()
    done = ps("open", cwd=home / folder)
    why = "is not UTF-8" if "\udcff" in folder else "control characters"
    assert done.returncode == 1 and why in done.stderr
    assert sessions.panes() == {} and not (state() / "registry.tsv").exists()


def test_two_new_sessions_of_one_moment_are_two(ps, work):
    ps("open", cwd=work)
    start_ = program.begin(quiet=True)
    world = program.take_world(start_)
    made = [program.reserve(start_, str(work), "", True, world)[0].name for _ in range(2)]
    assert len({"work", *made}) == 3


def test_a_session_that_is_brought_back_while_a_tick_works_stays(ps, work):
    ps("open", cwd=work)
    mark = state() / "work.retired"
    mark.write_text(f"directory={work}\n")
    start_ = program.begin(quiet=True)
    world = program.take_world(start_)
    mark.unlink()
    program.tidy(start_, world)
    assert not mark.exists() and "work" in (state() / "registry.tsv").read_text()


def test_a_mark_keeps_what_a_session_was_opened_with(ps, work):
    configure(claude={"open_args": ["--model", "m"]})
    ps("open", cwd=work)
    ps("retire", "work")
    sessions.type_line("work", "/exit")
    assert support.wait_until(lambda: sessions.ended("work"))
    mark = state() / "work.retired"
    assert support.wait_until(lambda: "ended at its prompt" in mark.read_text())
    kept = program.parse_retired("work", mark.read_text())
    assert kept.args == ("--model", "m")


def test_a_session_that_was_retired_can_be_attached_while_it_runs(ps, work):
    ps("open", cwd=work)
    ps("retire", "work")
    assert "work: attach needs a terminal" in ps("attach", "work").stderr
