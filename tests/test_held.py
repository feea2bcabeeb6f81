"""Never two writers: a conversation that another live process writes is not resumed."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time

import pytest
import sessions
import support
from sessions import declare, file_id, new_id, record, row, transcript

import persistent_sessions as program

pytestmark = pytest.mark.tmux


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def api(claude):
    """A declared session that is not running, with a conversation on disk."""
    declare(row("api"))
    transcript(new_id(1))
    file_id("api", new_id(1))
    return new_id(1)


def refused(ps, pid):
    done = ps("start")
    return done.returncode == 1 and f"api: HELD: pid {pid} " in done.stderr


def test_a_live_process_outside_tmux_holds_its_conversation(ps, api, sleeper):
    record(sleeper.pid, api)
    assert refused(ps, sleeper.pid) and sessions.panes() == {}


def test_a_background_job_holds_its_conversation(ps, api, sleeper):
    record(sleeper.pid, api, kind="bg", jobId="00000001")
    assert refused(ps, sleeper.pid)


def test_a_record_of_three_days_ago_still_counts(ps, api, sleeper):
    path = record(sleeper.pid, api)
    os.utime(path, (1, 1))
    assert refused(ps, sleeper.pid)


def test_another_users_process_counts(ps, api):
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to run a process as somebody else")
    other = subprocess.Popen(["sleep", "300"], user=65534)
    try:
        record(other.pid, api)
        assert refused(ps, other.pid)
    finally:
        other.kill()
        other.wait()


def test_a_dead_background_job_that_was_not_stopped_is_named(ps, api):
    job = sessions.claude_folder() / "jobs" / "0000000a"
    job.mkdir(parents=True)
    (job / "state.json").write_text(json.dumps({"sessionId": api, "state": "working"}))
    done = ps("start")
    assert done.returncode == 1 and "claude stop 0000000a" in done.stderr
    (job / "state.json").write_text(json.dumps({"sessionId": api, "state": "stopped"}))
    assert ps("start").returncode == 0


def test_a_conversation_that_moved_goes_on_under_its_new_id(ps, api):
    link = {"type": "continued-in", "sessionId": api, "continuedInSessionId": new_id(2)}
    with open(transcript(api), "a", encoding="utf-8") as f:
        f.write(json.dumps(link) + "\n")
    transcript(new_id(2))
    assert f"resumed {new_id(2)}" in ps("start").stderr


def test_stale_records_hold_nothing(ps, api, sleeper):
    record(sleeper.pid, api, procStart="1")
    ended = subprocess.Popen(["true"])
    support.wait_until(lambda: not support.alive(ended.pid))
    record(ended.pid, api, procStart="1")
    thread = threading.Thread(target=lambda: stop.wait(30))
    stop = threading.Event()
    thread.start()
    record(thread.native_id, api, procStart=support.start_time(thread.native_id))
    done = ps("start")
    stop.set()
    assert done.returncode == 0, done.stderr
    ended.wait()


def test_a_zombie_holds_nothing(ps, api):
    child = subprocess.Popen(["sleep", "0.1"])
    start = support.start_time(child.pid)
    assert support.wait_until(lambda: not support.alive(child.pid))
    record(child.pid, api, procStart=start)
    assert ps("start").returncode == 0
    child.wait()


def test_two_rows_with_one_conversation_start_it_once(ps, claude):
    log = sessions.argv_log()
    declare(row("a", "shared"), row("b", "shared"))
    transcript(new_id(1))
    file_id("a", new_id(1))
    file_id("b", new_id(1))
    stamp = (sessions.state() / "a.id").stat().st_mtime
    os.utime(sessions.state() / "b.id", (stamp, stamp))
    done = ps("start")
    assert done.returncode == 1 and "b: HELD" in done.stderr and "'a'" in done.stderr
    assert len(sessions.launches(log)) == 1


def test_of_two_rows_the_newer_file_owns_the_conversation(ps, claude):
    declare(row("a", "shared"), row("b", "shared"))
    transcript(new_id(1))
    file_id("a", new_id(1))
    file_id("b", new_id(1))
    os.utime(sessions.state() / "a.id", (1000, 1000))
    assert "a: HELD" in ps("start").stderr and set(sessions.panes()) == {"b"}


def test_a_pane_that_waits_at_a_dialog_holds_its_conversation(ps, claude, home):
    first = new_id(1)
    transcript(first)
    declare(row("a", "shared", pin=first), row("b", "shared", pin=first))
    ps("start", "--dry-run")
    (home / ".config" / sessions.NAME / "settings.a.json").write_text(
        '{"skipDangerousModePermissionPrompt": false}'
    )
    done = ps("start")
    assert "a: BLOCKED: the Bypass Permissions warning" in done.stderr
    assert "b: HELD" in ps("start").stderr and set(sessions.panes()) == {"a"}


def test_a_record_in_the_middle_of_a_write_still_holds(ps, api, sleeper):
    path = record(sleeper.pid, api)
    whole = path.read_text()
    stop = threading.Event()

    def rewrite():
        while not stop.is_set():
            path.write_text(whole[: len(whole) // 2])
            path.write_text(whole)

    writer = threading.Thread(target=rewrite)
    writer.start()
    said = [ps("start").stderr for _ in range(5)]
    stop.set()
    writer.join()
    assert all("api: HELD" in text or "api: UNKNOWN" in text for text in said)
    assert sessions.panes() == {}


@pytest.mark.parametrize("text", ["\0" * 591, "", '{"pid": 1'])
def test_a_record_that_a_power_cut_left_holds_nothing(ps, api, sleeper, text):
    path = record(sleeper.pid, api)
    path.write_text(text)
    os.utime(path, (1000, 1000))
    assert ps("start").returncode == 0


def test_of_a_scratch_server_and_a_second_window_no_record_is_believed(ps, claude, sleeper):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    first = sessions.head_id("api")
    transcript(new_id(9))
    folder = os.path.join(os.environ["HOME"], "api")
    record(sleeper.pid, new_id(9), tmux="api:@7.%9", cwd=folder)
    support.run_tmux("kill-server")
    assert support.wait_until(lambda: sessions.ended("api"))
    assert f"resumed {first}" in ps("start").stderr


def test_a_session_without_a_supervisor_is_known_by_its_record(ps, claude):
    declare(row("api"))
    folder = os.path.join(os.environ["HOME"], "api")
    transcript(new_id(3))
    old = record(os.getpid(), new_id(3), tmux="api:@0.%0", cwd=folder, procStart="1")
    assert old.exists() and f"resumed {new_id(3)}" in ps("start").stderr


def test_a_record_of_an_earlier_boot_files_nothing_for_a_session_that_is_not_there(
    ps, api, home, sleeper
):
    run = program.Supervisor("earlier", 101, "1", 102, "2", "%0", "", "", time.time())
    (sessions.state() / "api.run").write_text(program.format_supervisor(run))
    transcript(new_id(2))
    record(sleeper.pid, new_id(2), tmux="api:@0.%0", cwd=str(home / "api"))
    assert ps("start").returncode == 0
    assert new_id(2) not in (sessions.state() / "api.id").read_text()
    assert sessions.head_id("api") == api


@pytest.mark.parametrize(
    "words",
    [["--continue"], ["-c"], ["--resume", new_id(2)], [f"-r={new_id(2)}"], ["--session-id", "x"]],
)
def test_arguments_choose_no_conversation(ps, api, words):
    last = "--dangerously-skip-permissions"
    declare(row("api"), row("web", "api"), claude={"start_args": ["--model", "m", *words, last]})
    transcript(new_id(2))
    file_id("web", new_id(2))
    log = sessions.argv_log()
    done = ps("start")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("'claude.start_args': what chooses a conversation is left out") == 1
    given = {r["env"]["PS_SESSION_NAME"]: r["argv"] for r in sessions.launches(log)}
    kept = {name: words[words.index("--model") : -4] for name, words in given.items()}
    ids = {"api": new_id(1), "web": new_id(2)}
    assert kept == {name: ["--model", "m", last, "--resume", ids[name]] for name in ids}


def test_a_new_session_takes_up_no_neighbours_conversation(ps, api):
    declare(row("api"), claude={"open_args": ["--continue"]})
    transcript(new_id(1), os.environ["HOME"].replace("/", "-") + "-api")
    assert ps("start").returncode == 0
    done = ps("open", "--new", "web", cwd=f"{os.environ['HOME']}/api")
    assert done.returncode == 0 and "web: a new conversation" in done.stderr, done.stderr
    assert sessions.head_id("api") == new_id(1) != sessions.head_id("web")


@pytest.fixture
def slow_start(ps, api):
    """`start` in which the launch of `api` is planned and another one's is waited for."""
    declare(row("first"), row("api"), launch={"parallel": 1})
    sessions.knob(delay=4)
    start = ps.start("start")
    assert support.wait_until(lambda: sessions.agent("first"))
    return start


def test_a_conversation_that_is_taken_up_meanwhile_is_left_alone(slow_start, api, sleeper):
    record(sleeper.pid, api)
    _, said = slow_start.communicate(timeout=60)
    why = f"api: HELD: pid {sleeper.pid} writes this conversation (outside tmux)"
    assert slow_start.returncode == 1 and why in said, said
    assert set(sessions.panes()) == {"first"}


def test_a_conversation_that_a_held_pane_asks_for_meanwhile_is_left_alone(slow_start, api, sleeper):
    here = program.Supervisor(
        program.boot_id(), sleeper.pid, support.start_time(sleeper.pid), 0, "", "%9", "", api,
        time.time(),
    )  # fmt: skip
    (sessions.state() / "other.run").write_text(program.format_supervisor(here))
    _, said = slow_start.communicate(timeout=60)
    why = f"api: HELD: pid {sleeper.pid} writes this conversation (session 'other')"
    assert slow_start.returncode == 1 and why in said, said
    assert set(sessions.panes()) == {"first"}


def test_a_tmux_session_that_a_person_makes_meanwhile_gets_no_claude(slow_start, tmux):
    tmux("new-session", "-d", "-s", "api", "exec sleep 1000")
    pid = sessions.panes()["api"]
    _, said = slow_start.communicate(timeout=60)
    why = f"api: FOREIGN: a tmux session of this name runs something else (pid {pid})"
    assert slow_start.returncode == 1 and why in said, said
    assert len(tmux("list-panes", "-s", "-t", "=api").stdout.splitlines()) == 1


def test_a_named_conversation_is_not_opened_in_a_session_of_the_persons(ps, api, tmux):
    tmux("new-session", "-d", "-s", "api", "exec sleep 1000")
    done = ps("open", "--resume", api, cwd=f"{os.environ['HOME']}/api")
    assert done.returncode == 1 and "api: FOREIGN: a tmux session" in done.stderr
    assert len(tmux("list-panes", "-s", "-t", "=api").stdout.splitlines()) == 1


def test_an_open_that_is_refused_at_its_launch_leaves_no_row(ps, api, home, sleeper):
    (home / "web").mkdir()
    (home / ".claude.json").unlink(missing_ok=True)
    (home / ".claude.json.lock").mkdir()
    trace = {"PS_TRACE": "1"}
    process = ps.start("open", "--resume", api, cwd=home / "web", env=trace)
    registry = sessions.state() / "registry.tsv"
    assert support.wait_until(lambda: registry.exists() and "web" in registry.read_text())
    for _ in range(2):  # the world before the row is made, and with it
        assert any("list-panes" in line for line in process.stderr)
    record(sleeper.pid, api)
    (home / ".claude.json.lock").rmdir()
    _, said = process.communicate(timeout=60)
    why = f"web: HELD: pid {sleeper.pid} writes this conversation (outside tmux)"
    assert process.returncode == 1 and why in said, said
    assert "web" not in registry.read_text()
