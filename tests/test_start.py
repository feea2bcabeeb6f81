"""`start`: what is missing comes back in its own conversation; what holds one up is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import sessions
import support
from sessions import declare, head_id, new_id, row, state

import persistent_sessions as program

pytestmark = pytest.mark.tmux


def test_a_killed_session_is_resumed_and_a_live_one_is_left_alone(ps, claude):
    declare(row("api"), row("web"))
    assert ps("start").returncode == 0
    for name in ("api", "web"):
        sessions.prompt(name, f"remember {name}")
    first, pid = head_id("api"), sessions.panes()["web"]
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    done = ps("start")
    assert done.returncode == 0 and f"resumed {first}" in done.stderr, done.stderr
    assert sessions.panes()["web"] == pid
    sessions.type_line("api", "again")
    assert support.wait_until(lambda: "knows: remember api" in sessions.screen("api"))


def test_the_whole_server_may_go_and_all_come_back(ps, claude, tmux):
    declare(row("api"), row("web"))
    ps("start")
    for name in ("api", "web"):
        sessions.prompt(name, "hello")
    ids = {name: head_id(name) for name in ("api", "web")}
    tmux("kill-server")
    assert support.wait_until(lambda: sessions.ended("api") and sessions.ended("web"))
    assert ps("start").returncode == 0
    assert {name: head_id(name) for name in ("api", "web")} == ids


def test_a_longer_name_is_another_session(ps, claude, tmux):
    declare(row("review-api"))
    tmux("new-session", "-d", "-s", "review-api-worker", "sleep", "300")
    worker = sessions.panes()["review-api-worker"]
    assert ps("start").returncode == 0
    assert ps("retire", "review-api").returncode == 0
    assert sessions.panes()["review-api-worker"] == worker and "review-api" in sessions.panes()


def test_what_was_ended_at_its_prompt_stays_ended(ps, claude):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    sessions.type_line("api", "/exit")
    assert support.wait_until(lambda: (state() / "api.retired").exists())
    assert ps("start").returncode == 0 and "api" not in sessions.panes()
    assert sessions.listed(ps)["api"]["state"] == "RETIRED"


def test_a_session_that_is_retired_while_it_runs_is_shown_as_what_it_is(ps, claude, home, tmux):
    (home / "api").mkdir()
    assert ps("open", cwd=home / "api").returncode == 0
    assert ps("retire", "api").returncode == 0
    shown = sessions.listed(ps)["api"]
    assert (shown["state"], shown["note"]) == ("LIVE", "retired: it will not come back")
    tmux("kill-session", "-t", "=api")
    assert support.wait_until(lambda: sessions.ended("api"))
    shown = sessions.listed(ps)["api"]
    assert (shown["state"], shown["note"]) == ("RETIRED", "ended on purpose")


def test_a_live_session_whose_row_is_gone_is_named_until_it_ends(ps, claude, tmux):
    declare(row("api"), row("web"))
    assert ps("start").returncode == 0
    assert support.wait_until(lambda: (state() / "api.event").exists())
    declare(row("web"))
    note = "no longer declared: it will not come back"
    done = ps("start")
    assert done.returncode == 0 and f"api: LIVE: {note}" in done.stderr
    shown = sessions.listed(ps)
    assert (shown["api"]["note"], shown["api"]["declared"]) == (note, False)
    assert shown["api"]["hint"] == f"{sessions.NAME} open api" and shown["web"]["note"] is None
    assert ps("capture", "api").stdout and ps("start", "api").returncode == 0
    assert ps("trust", "api").returncode == 1
    tmux("kill-session", "-t", "=api")
    assert support.wait_until(lambda: sessions.ended("api"))
    assert "api" not in ps("start").stderr and "api" not in sessions.listed(ps)
    assert ps("start", "api").returncode == 1


@pytest.mark.parametrize("command", ["retire", "stop"])
def test_a_live_session_whose_row_is_gone_can_be_ended_for_good(ps, claude, tmux, command):
    declare(row("api"), row("web"))
    ps("start")
    sessions.prompt("api", "hello")
    declare(row("web"))
    assert ps(command, "api").returncode == 0
    tmux("kill-session", "-t", "=api")
    assert support.wait_until(lambda: sessions.ended("api"))
    declare(row("api"), row("web"))  # the row comes back, the session does not
    assert ps("start").returncode == 0 and sessions.listed(ps)["api"]["state"] == "RETIRED"


def test_a_session_that_was_renamed_in_tmux_is_retired_by_either_name(ps, claude, tmux):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    tmux("rename-session", "-t", "=api", "shop")
    ps("start")
    declare(row("web"))
    assert "shop" in ps("retire", "api").stderr
    assert (state() / "shop.retired").exists() and (state() / "api.retired").exists()


def test_a_file_of_an_ended_session_that_cannot_be_read_fails_no_tick(ps, claude, home):
    sessions.configure()
    (home / "work").mkdir()
    ps("open", cwd=home / "work")
    ps("stop", "work")
    assert support.wait_until(lambda: sessions.ended("work"))
    (state() / "work.id").unlink(missing_ok=True)
    (state() / "work.id").mkdir()
    assert ps("start").returncode == 0
    assert sessions.listed(ps)["work"]["state"] == "UNKNOWN"


def test_deaths_far_apart_have_no_one_cause():
    assert program.is_storm([0.0, 1.0, 2.0]) and not program.is_storm([0.0, 6.0, 12.0])


def test_a_session_that_is_opened_while_we_look_has_a_row(private, home):
    """Its .run is newer than the rows that were read."""
    paths = program.Paths.from_env(os.environ)
    program.make_state(paths)
    boot, mine = program.boot_id(), os.getpid()
    start = program.process_start(mine)
    live = program.Supervisor(boot, mine, start, 0, "", "", "", "", 0.0)
    for name in ("api", "web", "old"):
        (state() / f"{name}.run").write_text(program.format_supervisor(live))
    program.register(paths, program.Spec("api", str(home)))
    program.register(paths, program.Spec("new", str(home), renamed="old"))
    listing = frozenset(os.listdir(state()))
    found = program.read_rowless(paths, (), listing, boot)
    assert found == [program.Spec("web", os.getcwd())]


def test_a_folder_that_was_removed_under_a_session_keeps_its_name(private, home):
    (home / "work").mkdir()
    child = subprocess.Popen(["sleep", "60"], cwd=home / "work")
    try:
        (home / "work").rmdir()
        live = program.Supervisor("", child.pid, "1", 0, "", "", "", "", 0.0)
        assert program.read_own_row("api", live).directory == str(home / "work")
    finally:
        child.kill()
        child.wait()


def test_start_by_name_brings_a_retired_session_back_in_its_old_conversation(ps, claude):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    first = head_id("api")
    sessions.type_line("api", "/exit")
    assert support.wait_until(lambda: (state() / "api.retired").exists())
    assert ps("start", "api").returncode == 0
    assert head_id("api") == first and not (state() / "api.retired").exists()


def test_a_retired_session_is_not_brought_back_and_a_killed_one_is(ps, claude, tmux):
    declare(row("x"), row("y"))
    ps("start")
    sessions.prompt("y", "hello")
    ps("retire", "x")
    tmux("kill-session", "-t", "=x")
    tmux("kill-session", "-t", "=y")
    assert support.wait_until(lambda: sessions.ended("x") and sessions.ended("y"))
    assert ps("start").returncode == 0 and ps("start").returncode == 0
    assert set(sessions.panes()) == {"y"}


@pytest.mark.parametrize("option", ["remain-on-exit on", "destroy-unattached on"])
def test_options_of_the_person_do_not_hide_or_lose_a_session(ps, claude, option):
    sessions.conf(f"set -g {option}\n")
    declare(row("api"))
    assert ps("start").returncode == 0
    sessions.prompt("api", "hello")
    first = head_id("api")
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    assert ps("start").returncode == 0 and head_id("api") == first
    assert support.alive(sessions.agent("api"))


def test_a_dead_pane_is_no_session(ps, claude, tmux):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    tmux("set-option", "-w", "-t", "=api:", "remain-on-exit", "on")
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    assert ps("start").returncode == 0 and support.alive(sessions.agent("api"))


def test_a_session_of_the_same_name_that_runs_something_else_is_named(ps, claude, tmux):
    sessions.conf("new-session -d -s api\n")
    declare(row("api"), row("web"))
    tmux("start-server", ";", "source-file", os.path.expanduser("~/.tmux.conf"))
    shell = sessions.panes()["api"]
    done = ps("start")
    assert done.returncode == 1 and "api: FOREIGN" in done.stderr
    assert sessions.panes()["api"] == shell and "web" in sessions.panes()


def test_a_deleted_socket_is_made_anew_and_no_second_server_started(ps, claude, tmux):
    declare(row("api"))
    ps("start")
    pid = sessions.panes()["api"]
    socket = Path(os.environ["TMUX_TMPDIR"], f"tmux-{os.getuid()}", "default")
    socket.unlink()
    assert ps("start").returncode == 0
    assert sessions.panes() == {"api": pid}


def test_a_deleted_socket_of_a_server_without_our_sessions_is_made_anew_too(ps, claude, tmux):
    declare(row("api"))
    tmux("new-session", "-d", "-s", "other", "sleep", "300")
    Path(os.environ["TMUX_TMPDIR"], f"tmux-{os.getuid()}", "default").unlink()
    assert ps("start").returncode == 0
    assert set(sessions.panes()) == {"api", "other"}


@pytest.mark.parametrize("how", ["its folder is gone", "another file stands there"])
def test_a_server_that_cannot_be_reached_is_reached_again(ps, claude, tmux, how):
    declare(row("api"))
    ps("start")
    pid = sessions.panes()["api"]
    if how == "its folder is gone":
        shutil.rmtree(os.environ["TMUX_TMPDIR"])
    else:
        socket = Path(os.environ["TMUX_TMPDIR"], f"tmux-{os.getuid()}", "default")
        socket.unlink()
        socket.write_text("not a socket")
    done = ps("start")
    assert done.returncode == 0 and "made its deleted socket file anew" in done.stderr
    assert sessions.panes() == {"api": pid}


def test_a_pane_that_was_moved_into_another_session_comes_back_by_its_own_name(ps, claude, tmux):
    declare(row("api"), row("web"))
    ps("start")
    sessions.prompt("web", "remember web")
    first = head_id("web")
    tmux("new-session", "-d", "-s", "mine", "sleep 300")
    tmux("join-pane", "-s", "=web:", "-t", "=mine:")
    done = ps("start")
    assert "web: LIVE: as 'mine'" in done.stderr and " mine: " not in done.stderr, done.stderr
    os.kill(sessions.agent("web"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("web"))
    done = ps("start")
    assert f"web: LAUNCH: resumed {first}" in done.stderr and done.returncode == 0, done.stderr
    assert set(sessions.panes()) == {"api", "web", "mine"}


def test_the_command_that_helps_reaches_the_server_it_is_about(ps, claude, private):
    socket = str(private / "other.sock")
    declare(row("api"), tmux={"socket": socket})
    support.run_tmux("-S", socket, "new-session", "-d", "-s", "api", "sleep 300")
    try:
        done = ps("start")
        assert f"(try: tmux -S {socket} rename-session -t '=api' api-other)" in done.stderr
    finally:
        support.run_tmux("-S", socket, "kill-server")


@pytest.mark.parametrize("how", ["start", "open"])
def test_a_session_that_the_servers_start_makes_is_named_at_once(ps, claude, home, how):
    declare(row("api"), row("web"))
    sessions.conf("new-session -d -s api 'sleep 300'\n")
    began = time.monotonic()
    done = ps(how, cwd=home / "api")
    assert done.returncode == 1 and "api: FOREIGN: a tmux session of this name" in done.stderr
    assert "rename-session -t '=api'" in done.stderr and time.monotonic() - began < 20
    assert not list(Path(os.environ["HOME"]).parent.rglob("*.job.*"))
    assert set(sessions.panes()) == ({"api", "web"} if how == "start" else {"api"})


def test_a_session_whose_servers_socket_is_anothers_is_named_and_comes_back(ps, claude, tmux):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "remember api")
    first, old = head_id("api"), int(tmux("display-message", "-p", "#{pid}").stdout)
    Path(os.environ["TMUX_TMPDIR"], f"tmux-{os.getuid()}", "default").unlink()
    tmux("new-session", "-d", "-s", "mine", "sleep 300")  # before any tick could mend it
    done = ps("start")
    supervisor = sessions.pairs("api", "run")["pid"]
    assert done.returncode == 1 and "api: UNKNOWN: it runs in a tmux server that" in done.stderr
    assert f"(try: kill {supervisor})" in done.stderr
    os.kill(int(supervisor), signal.SIGTERM)
    assert support.wait_until(lambda: sessions.ended("api") and not support.alive(old))
    done = ps("start")
    assert done.returncode == 0 and f"api: LAUNCH: resumed {first}" in done.stderr
    assert set(sessions.panes()) == {"api", "mine"}


def test_a_server_that_says_nothing_leaves_what_lives_live(ps, claude, tmux):
    declare(row("api"), row("web"))
    ps("start")
    pid = int(tmux("display-message", "-p", "#{pid}").stdout)
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = ps("start", timeout=120)
        took = time.monotonic() - began
    finally:
        os.kill(pid, signal.SIGCONT)
    for name in ("api", "web"):
        said = next(line for line in done.stderr.splitlines() if f" {name}: " in line)
        assert " LIVE: its process lives, but tmux" in said and "no answer in 30 s" in said, said
    assert done.returncode == 0 and took < 45  # it is not asked twice


def test_a_shell_and_the_unit_agree_about_the_socket(ps, claude, home, tmux):
    sessions.configure()
    (home / "tm").mkdir()
    work = home / "work"
    work.mkdir()
    assert ps("open", cwd=work, env={"TMUX_TMPDIR": str(home / "tm")}).returncode == 0
    done = ps("start")
    assert done.returncode == 0 and "work: LIVE" in done.stderr
    assert sessions.panes() == {}
    support.run_tmux("-S", str(home / "tm" / f"tmux-{os.getuid()}" / "default"), "kill-server")


@pytest.mark.parametrize("how", ["unsafe", "long", "foreign"])
def test_a_socket_folder_that_tmux_refuses_is_one_clear_line(ps, claude, home, how):
    declare(row("api"))
    base = home / ("l" * 120 if how == "long" else "tm")
    base.mkdir()
    if how != "long":
        (base / f"tmux-{os.getuid()}").mkdir()
        (base / f"tmux-{os.getuid()}").chmod(0o777)
    if how == "foreign" and os.getuid() == 0:
        os.chown(base / "tmux-0", 65534, 65534)
        (base / "tmux-0").chmod(0o700)
    done = ps("start", env={"TMUX_TMPDIR": str(base)})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "File name too long" in done.stderr if how == "long" else "unsafe" in done.stderr


def test_a_wave_that_cannot_be_launched_does_not_speak_for_an_earlier_one(ps, claude, home):
    real = claude.rename(home / ".local/bin/real")
    claude.write_text(f'#!/bin/sh\nchmod 777 "$TMUX_TMPDIR"/tmux-*\nexec {real} "$@"\n')
    claude.chmod(0o755)
    declare(row("a"), row("b"), row("c"), launch={"parallel": 1})
    done = ps("start")
    assert done.returncode == 1 and "a: LAUNCH: a new" in done.stderr, done.stderr
    for name in ("b", "c"):
        line = next(x for x in done.stderr.splitlines() if f" {name}: " in x)
        assert "not launched: tmux: directory" in line and "(try: ls -ld" in line, line
    assert support.alive(sessions.agent("a"))


def test_secrets_reach_the_agent_and_no_command_line(ps, claude):
    log = sessions.argv_log()
    declare(row("api"))
    env = {"FAKE_TOKEN": "zzz-secret", "BULK": "b" * 20000}
    assert ps("start", env=env).returncode == 0
    assert sessions.launches(log)[0]["env"]["FAKE_TOKEN"] == "zzz-secret"
    assert len(sessions.launches(log)[0]["env"]["BULK"]) == 20000
    lines = [
        Path(f"/proc/{p}/cmdline").read_bytes()
        for p in os.listdir("/proc")
        if p.isdigit() and support.alive(int(p))
    ]
    assert not any(b"zzz-secret" in line for line in lines)
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*.job.*"))


def test_markers_of_an_enclosing_agent_do_not_reach_a_session(ps, claude, tmux, home):
    log = sessions.argv_log()
    marks = {"CLAUDECODE": "1", "CLAUDE_CODE_CHILD_SESSION": "1", "CLAUDE_CODE_SESSION_ID": "x"}
    os.environ.update(marks)
    tmux("new-session", "-d", "-s", "first", "sleep", "300")
    declare(row("api"))
    assert ps("start", env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}).returncode == 0
    env = sessions.launches(log)[0]["env"]
    assert not marks.keys() & env.keys()
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9" and env["PS_SESSION_NAME"] == "api"


def test_an_old_server_does_not_decide_the_environment(ps, claude, tmux, home):
    log = sessions.argv_log()
    tmux("new-session", "-d", "-s", "first", "sleep", "300")
    tools = home / ".config" / sessions.NAME / "bin"
    declare(row("api"))
    tools.mkdir()
    assert ps("start", env={"NEW": "yes"}).returncode == 0
    env = sessions.launches(log)[0]["env"]
    assert env["PATH"].split(":")[0] == str(tools) and env["NEW"] == "yes"
    assert env["TMUX_PANE"].startswith("%")


def test_a_claude_that_is_not_there_or_ends_at_once_is_named(ps, home):
    declare(row("api"), row("web"))
    done = ps("start", env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 1 and "claude: not found" in done.stderr
    program = home / ".local/bin/claude"
    program.write_text("#!/bin/sh\necho cannot start here >&2; exit 1\n")
    program.chmod(0o755)
    done = ps("start")
    assert done.returncode == 1
    assert "api: LAUNCH: it ended at once (rc=1: cannot start here)" in done.stderr, done.stderr
    assert sessions.panes() == {}


def test_an_end_is_not_told_with_the_screen_of_an_earlier_one(ps, claude, home):
    for kind, text in (("exit", "rc=7 deliberate=no\n"), ("screen", "cannot start here\n")):
        state().mkdir(0o700, parents=True, exist_ok=True)
        path = state() / f"api.{kind}"
        path.write_text(text)
        os.utime(path, (1700000000, 1700000000))
    claude.write_text("#!/bin/sh\nkill -9 $PPID; exec sleep 1\n")  # nothing is written at its end
    declare(row("api"))
    done = ps("start")
    assert done.returncode == 1
    assert "api: LAUNCH: it ended at once (no trace)" in done.stderr, done.stderr
    assert "api.screen (of 2023-11-14T22:13:20Z):\ncannot start here\n" in ps("logs", "api").stdout


def test_a_bare_path_still_finds_the_claude_in_the_home(ps, claude):
    declare(row("api"))
    assert ps("start", env={"PATH": "/usr/local/bin:/usr/bin:/bin"}).returncode == 0


def test_a_session_that_dies_at_every_launch_rests_and_keeps_its_id(ps, claude, home):
    log = sessions.argv_log()
    first = new_id(1)
    sessions.transcript(first)
    sessions.file_id("bad", first)
    real = claude.rename(home / ".local/bin/real-claude")
    claude.write_text(
        f'#!/bin/sh\ncase "$*" in *{first}*) echo No conversation found; exit 1;; esac\n'
        f'exec {real} "$@"\n'
    )
    claude.chmod(0o755)
    declare(row("bad"), row("good"))
    for _ in range(4):
        done = ps("start")
        assert done.returncode == 1 and "bad: " in done.stderr and "good: L" in done.stderr
    assert "RESTING" in done.stderr and head_id("bad") == first
    assert len(sessions.launches(log)) == 1 and "good" in sessions.panes()
    assert "LAUNCH" in ps("start", "bad").stderr


def test_three_that_die_at_once_stop_the_launching(ps, home):
    program = home / ".local/bin/claude"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    declare(*(row(f"s{at}") for at in range(8)), launch={"parallel": 3})
    done = ps("start")
    assert done.returncode == 1 and "the cause is shared" in done.stderr
    assert "s7: UNKNOWN" in done.stderr and not (state() / "s7.exit").exists()


def test_a_caller_that_reads_our_output_is_not_kept_waiting(claude):
    declare(row("api"))
    script = f"x=$({support.sys.executable} -IS {support.SESSIONS} start 2>&1); echo done"
    done = subprocess.run(["timeout", "60", "bash", "-c", script], capture_output=True, text=True)
    assert done.stdout == "done\n"


def test_descriptors_of_the_caller_are_not_handed_to_the_server(claude, tmux):
    declare(row("api"))
    reading, writing = os.pipe()
    argv = [support.sys.executable, "-IS", support.SESSIONS, "start"]
    subprocess.run(argv, check=True, pass_fds=(writing,), capture_output=True)
    os.close(writing)
    support.select.select([reading], [], [], 5)
    assert os.read(reading, 1) == b""


def test_a_session_runs_in_its_own_folder_wherever_start_was_called(ps, claude):
    log = sessions.argv_log()
    declare(row("api", "deep folder/x'y"))
    assert ps("start", cwd="/").returncode == 0
    assert sessions.launches(log)[0]["cwd"] == os.path.expanduser("~/deep folder/x'y")


def test_folders_of_ours_that_are_not_absolute_are_the_usual_ones(ps, claude, home):
    declare(row("api"))
    for folder in ("one", "other"):
        (home / folder).mkdir()
        named = {"XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "conf"}
        done = ps("start", env=named, cwd=home / folder)
        assert done.returncode == 0, done.stderr
        assert os.listdir(home / folder) == []
    assert len(sessions.claudes()) == 1 and (state() / "api.run").exists()


ODD = ["a;", "#{host}", "$HOME", "it's", "ünï", "-x", "a\\b", 'q"q', "a\xa0b", "a\u200cb"]


@pytest.mark.parametrize("folder", ODD)
def test_odd_folders_are_entered_as_they_are(ps, claude, folder):
    log = sessions.argv_log()
    declare(row("api", folder))
    assert ps("start").returncode == 0
    assert sessions.launches(log)[0]["cwd"] == os.path.join(os.environ["HOME"], folder)


def test_a_folder_that_is_gone_is_refused_and_the_others_launch(ps, claude):
    declare(row("lost"), row("api"))
    os.rmdir(os.path.expanduser("~/lost"))
    done = ps("start")
    assert done.returncode == 1 and "lost: GONE" in done.stderr
    assert set(sessions.panes()) == {"api"}


def test_an_id_without_a_conversation_on_disk_gives_way_and_is_kept(ps, claude):
    log = sessions.argv_log()
    declare(row("api", pin=new_id(2)))
    sessions.transcript(new_id(2))
    sessions.file_id("api", new_id(1))
    assert ps("start").returncode == 0
    assert new_id(2) in sessions.launches(log)[0]["argv"]
    assert new_id(1) in (state() / "api.id").read_text()


def test_without_any_conversation_a_new_one_is_started_and_said(ps, claude):
    log = sessions.argv_log()
    declare(row("api"))
    (sessions.claude_folder() / "projects").mkdir()
    sessions.file_id("api", new_id(1))
    done = ps("start")
    assert done.returncode == 0 and "a new conversation" in done.stderr
    assert "--resume" not in sessions.launches(log)[0]["argv"]
    assert new_id(1) in (state() / "api.id").read_text()


def test_a_missing_projects_folder_is_not_no_conversation(ps, claude):
    declare(row("api"), row("web"))
    sessions.file_id("api", new_id(1))
    done = ps("start")
    assert done.returncode == 1 and "api: UNKNOWN" in done.stderr
    assert set(sessions.panes()) == {"web"}


@pytest.mark.parametrize(
    "folder", ["my_proj", ".dot", "日本", "/".join(["long" * 10] * 6)], ids=str.__len__
)
def test_a_conversation_is_found_whatever_its_folder_is_called(ps, claude, folder):
    declare(row("api", folder))
    ps("start")
    sessions.prompt("api", "hello")
    first = head_id("api")
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    assert f"resumed {first}" in ps("start").stderr


DAMAGE = {
    "half a line": '%s\n{"type":"assis',
    "nuls at the end": "%s\n" + "\0" * 4096,
    "two records on one line": '%s\n{"type":"mode"}{"type":"mode"}\n',
    "no newline": "%s",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_conversation_is_resumed_and_not_touched(ps, claude, damage):
    good = '{"type": "user", "message": {"role": "user", "content": "hello"}}'
    path = sessions.transcript(new_id(1), text=DAMAGE[damage] % good)
    sessions.file_id("api", new_id(1))
    declare(row("api"))
    before = path.read_bytes()
    assert f"resumed {new_id(1)}" in ps("start").stderr
    assert path.read_bytes().startswith(before[:60])


@pytest.mark.parametrize("text", ["", "\0" * 600, '{"type":"mode"}\n', '{"type":"user"'])
def test_a_conversation_that_claude_would_refuse_is_none(ps, claude, text):
    path = sessions.transcript(new_id(1))
    path.write_text(text)
    sessions.file_id("api", new_id(1))
    declare(row("api"))
    assert "a new conversation" in ps("start").stderr


def test_another_config_folder_is_used_for_everything(ps, claude, home):
    other = {"CLAUDE_CONFIG_DIR": str(home / "alt")}
    os.environ.update(other)
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    assert (home / "alt/.claude.json").exists() and not (home / ".claude.json").exists()
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    assert f"resumed {head_id('api')}" in ps("start").stderr


def test_a_base_index_does_not_matter(ps, claude):
    sessions.conf("set -g base-index 1\nsetw -g pane-base-index 1\nset -g default-command 'sh'\n")
    declare(row("api"))
    assert ps("start").returncode == 0
    sessions.prompt("api", "hello")


def test_a_dry_run_prints_the_plan_and_changes_nothing(ps, claude):
    declare(row("api"))
    done = ps("start", "--dry-run")
    assert done.stdout.startswith("api: LAUNCH") and sessions.panes() == {}
    assert done.returncode == 0


def test_a_session_that_says_nothing_in_time_is_unknown(ps, home):
    program = home / ".local/bin/claude"
    program.write_text("#!/bin/sh\nexec sleep 300\n")
    program.chmod(0o755)
    declare(row("api"), launch={"verify_s": 1})
    done = ps("start")
    assert done.returncode == 1 and "api: UNKNOWN: not up after 1 s" in done.stderr


def test_names_that_tmux_would_change_are_refused_by_line(ps, claude):
    names = ("$0", "%3", "-dash", "=eq", "sp ace", "back\\slash", "x#S", "", "a.b", "a:b", "x" * 65)
    declare(*(row(name, "api") for name in names), row("good"))
    done = ps("start")
    assert done.returncode == 1
    assert all(f"manifest line {at}: " in done.stderr for at in range(1, len(names) + 1))
    assert set(sessions.panes()) == {"good"}


@pytest.mark.parametrize("folder", ["", ".local/state"])
def test_on_a_read_only_disk_what_can_be_launched_is(ps, claude, home, folder):
    """What the disk says of an earlier run is not said of this one."""
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to remount the home")
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    support.run_tmux("kill-server")
    assert support.wait_until(lambda: sessions.ended("api"))
    argv = f"{support.sys.executable} -IS {support.SESSIONS} start"
    run_ = state() / "api.run"
    run_.write_text(re.sub(r"at=\d+", "at=1700000000", run_.read_text()))  # of long ago
    disk = home / folder
    script = f"mount --bind {disk} {disk} && mount -o remount,ro,bind {disk} && {argv}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "not recorded" in done.stderr
    if folder:  # in a home that is read-only the stand-in does not live for long
        assert f"api: LAUNCH: resumed {head_id('api')}\n" in done.stderr, done.stderr
        assert done.returncode == 0 and "api" in sessions.panes()


def test_a_launch_that_takes_long_shows_its_progress_on_a_terminal(claude, terminal):
    sessions.knob(delay=1.5)
    declare(row("api"))
    screen = terminal(support.sys.executable, "-IS", support.SESSIONS, "start", size=(30, 100))
    screen.expect("api: launched")
    assert screen.wait(30) == 0 and "api: LAUNCH" in screen.text()


def test_settings_of_one_session_that_do_not_parse_stop_only_that_one(ps, claude, home):
    declare(row("api"), row("web"))
    (home / ".config" / sessions.NAME / "settings.api.json").write_text("{")
    done = ps("start")
    assert done.returncode == 1 and "settings.api.json" in done.stderr
    assert set(sessions.panes()) == {"web"}


def test_an_id_known_from_a_record_alone_is_filed_before_its_launch(ps, claude, home):
    declare(row("api"))
    sessions.transcript(new_id(3))
    fields = {"tmux": "api:@0.%0", "cwd": str(home / "api"), "procStart": "1"}
    sessions.record(os.getpid(), new_id(3), **fields)
    claude.write_text("#!/bin/sh\nexit 1\n")
    assert ps("start").returncode == 1 and head_id("api") == new_id(3)


def test_while_the_machine_goes_down_no_server_is_started(ps, claude, home):
    tool = home / ".local/bin/systemctl"
    tool.write_text("#!/bin/sh\necho stopping\n")
    tool.chmod(0o755)
    declare(row("api"))
    done = ps("start")
    assert done.returncode == 1 and "shutting down: nothing is launched" in done.stderr
    assert sessions.panes() == {}


@pytest.mark.parametrize("mark", ["", "\0" * 100])
def test_a_mark_that_a_power_cut_emptied_ends_no_session(ps, claude, tmux, mark):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    first = head_id("api")
    tmux("kill-session", "-t", "=api")
    assert support.wait_until(lambda: sessions.ended("api"))
    (state() / "api.retired").write_text(mark)
    assert sessions.listed(ps)["api"]["state"] == "LAUNCH"
    assert "1 down" in ps("status").stdout
    done = ps("start")
    assert done.returncode == 0 and f"api: LAUNCH: resumed {first}" in done.stderr
    assert "api: LIVE" in ps("start").stderr


def test_a_mark_that_a_power_cut_emptied_counts_where_the_end_is_known(ps, claude):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    sessions.type_line("api", "/exit")
    assert support.wait_until(lambda: (state() / "api.retired").exists())
    (state() / "api.retired").write_text("")
    assert sessions.listed(ps)["api"]["state"] == "RETIRED"


def test_a_dry_run_of_an_ended_session_is_the_plan_and_changes_nothing(ps, claude, home):
    sessions.configure()
    (home / "work").mkdir()
    ps("open", cwd=home / "work")
    sessions.prompt("work", "hello")
    sessions.type_line("work", "/exit")
    assert support.wait_until(lambda: (state() / "work.retired").exists())
    before = sorted(os.listdir(state()))
    done = ps("start", "--dry-run", "work")
    assert done.stdout == f"work: LAUNCH: {head_id('work')}\n", done.stdout
    assert done.returncode == 0
    assert sorted(os.listdir(state())) == before
    assert sessions.listed(ps)["work"]["state"] == "RETIRED"


def test_three_of_the_only_wave_that_die_at_once_have_one_cause(ps, home):
    program = home / ".local/bin/claude"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    declare(*(row(f"s{at}") for at in range(4)), launch={"parallel": 8})
    assert "something that they share is the cause" in ps("start").stderr


def test_a_start_by_name_says_where_the_phone_finds_it(ps, claude):
    declare(row("api"))
    ps("start")
    path = sessions.record(sessions.agent("api"), new_id(1))
    known = {**json.loads(path.read_text()), "bridgeUrl": "https://claude.ai/code/x"}
    path.write_text(json.dumps(known))
    assert "api: LIVE: https://claude.ai/code/x\n" in ps("start", "api").stderr


def test_a_supervisor_that_is_ended_alone_keeps_the_last_screen(ps, claude):
    claude.write_text("#!/bin/sh\necho last words\nexec sleep 100\n")
    declare(row("api"), launch={"verify_s": 1})
    assert ps("start").returncode == 1
    os.kill(int(sessions.pairs("api", "run")["pid"]), signal.SIGTERM)
    assert support.wait_until(lambda: sessions.ended("api"))
    assert sessions.pairs("api", "exit")["signalled"] == "TERM"
    assert support.wait_until(lambda: (state() / "api.screen").exists())
    assert (state() / "api.screen").read_text() == "last words\n"


def test_a_hole_in_a_transcript_costs_neither_memory_nor_the_others(ps, claude, home):
    declare(row("api"), row("web"))
    sessions.file_id("api", new_id(1))
    path = sessions.transcript(new_id(1))
    whole = path.read_text()
    with open(path, "w") as f:
        f.truncate(1 << 30)
        f.seek(0, os.SEEK_END)
        f.write("\n" + whole)
    script = 'ulimit -v 700000; exec "$@"'
    argv = [support.sys.executable, "-IS", support.SESSIONS, "start", "--dry-run"]
    done = subprocess.run(["sh", "-c", script, "sh", *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"api: LAUNCH: {new_id(1)}" in done.stdout and "web: LAUNCH" in done.stdout


def test_a_job_that_no_pane_took_up_does_not_stay(ps, claude, home):
    """It holds the whole environment."""
    (home / ".tmux.conf").write_text("set -g exit-unattached on\n")
    sessions.configure(launch={"verify_s": 10})
    (home / "work").mkdir()
    done = ps("open", cwd=home / "work", env={"SECRET": "zzz"})
    assert done.returncode == 1 and "tmux did not keep its session" in done.stderr
    kept = subprocess.run(["grep", "-rl", "zzz", os.environ["XDG_RUNTIME_DIR"], state()],
                          capture_output=True, text=True)  # fmt: skip
    assert kept.stdout == ""


def test_a_wait_for_a_route_is_said_on_a_terminal(claude, terminal):
    declare(row("api"), network={"wait_s": 3})
    argv = (support.sys.executable, "-IS", support.SESSIONS, "start")
    screen = terminal("unshare", "-n", *argv, size=(30, 100))
    screen.expect("waiting for a default route, for at most 3 s")
    screen.expect("api: LAUNCH")


def test_another_users_folder_is_not_trusted_without_a_word(ps, claude, home):
    folder = home / "theirs"
    folder.mkdir()
    try:
        os.chown(folder, 65534, -1)
    except PermissionError:
        pytest.skip(f"{support.ABSENT}root, to give a folder away")
    declare(row("api", "theirs", user=os.environ["USER"]))
    assert f"{folder} belongs to another user: trusted" in ps("start").stderr
    assert "belongs" not in ps("start").stderr


def test_a_caller_that_blocks_the_alarm_waits_for_the_lock_no_longer(home, private):
    paths = program.Paths.from_env(os.environ)
    program.make_state(paths)
    held = program.take_lock(paths)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        with pytest.raises(program.Failure, match="holds it for more than"):
            program.take_lock(paths, 0.2)
        assert signal.SIGALRM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(held)


@pytest.mark.parametrize(
    "mode, fine", [(0o700, True), (0o770, True), (0o750, True), (0o701, False)]
)
def test_a_socket_folder_is_refused_where_tmux_refuses_it(private, tmux, mode, fine):
    folder = private / "t" / f"tmux-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    assert (tmux("new-session", "-d").returncode == 0) == fine
    try:
        program.check_socket(str(folder / "default"))
    except program.Failure:
        assert not fine
    else:
        assert fine
