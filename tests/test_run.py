"""`run`: how a session ends decides whether it comes back."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import sessions
import support
from sessions import configure, declare, head_id, row, state

pytestmark = pytest.mark.tmux


@pytest.fixture
def api(ps, claude):
    """Start a declared session with one prompt in its conversation; return its id."""
    declare(row("api"))
    assert ps("start").returncode == 0
    sessions.prompt("api", "hello")
    return head_id("api")


def by_exit(tmux):
    sessions.type_line("api", "/exit")


def keys(*names):
    def act(tmux):
        for name in names:
            tmux("send-keys", "-t", "=api:", name)

    return act


def kill(number, whom="claude"):
    return lambda tmux: os.kill(int(sessions.pairs("api", "run")[whom]), number)


def by_tmux(*args):
    return lambda tmux: tmux(*args)


def kill_server(number):
    def act(tmux):
        os.kill(int(tmux("display-message", "-p", "#{pid}").stdout), number)

    return act


ENDED = {
    "exit typed": by_exit,
    "ctrl-d twice": keys("C-d", "C-d"),
    "ctrl-c twice": keys("C-c", "C-c"),
}
BACK = {
    "TERM to claude": kill(signal.SIGTERM),
    "HUP to claude": kill(signal.SIGHUP),
    "INT to claude": kill(signal.SIGINT),
    "KILL to claude": kill(signal.SIGKILL),
    "QUIT to claude": kill(signal.SIGQUIT),
    "HUP to the supervisor": kill(signal.SIGHUP, "pid"),
    "TERM to the supervisor": kill(signal.SIGTERM, "pid"),
    "KILL to the supervisor": kill(signal.SIGKILL, "pid"),
    "kill-session": by_tmux("kill-session", "-t", "=api"),
    "kill-pane": by_tmux("kill-pane", "-t", "=api:"),
    "kill-server": by_tmux("kill-server"),
    "TERM to the server": kill_server(signal.SIGTERM),
    "KILL to the server": kill_server(signal.SIGKILL),
    "respawn-pane": by_tmux("respawn-pane", "-k", "-t", "=api:", "sleep", "300"),
}


@pytest.mark.parametrize("how", ENDED)
def test_what_a_person_ended_stays_ended(ps, api, tmux, how):
    ENDED[how](tmux)
    assert support.wait_until(lambda: (state() / "api.retired").exists())
    assert sessions.pairs("api", "exit")["deliberate"] == "yes"
    assert ps("start").returncode == 0 and "api" not in sessions.panes()


@pytest.mark.parametrize("how", BACK)
def test_everything_else_comes_back_in_its_conversation(ps, api, tmux, how):
    agent = sessions.agent("api")
    BACK[how](tmux)
    assert support.wait_until(lambda: sessions.ended("api") and not support.alive(agent), 15)
    assert not (state() / "api.retired").exists()
    tmux("kill-session", "-t", "=api")  # what respawn-pane put there
    done = ps("start")
    assert done.returncode == 0 and f"resumed {api}" in done.stderr, done.stderr
    sessions.type_line("api", "again")
    assert support.wait_until(lambda: "knows: hello" in sessions.screen("api"))


@pytest.mark.parametrize("how", ["kill-session", "kill-server", "kill-pane", "KILL to the server"])
def test_a_hang_up_is_passed_on_and_recorded(api, tmux, how):
    agent = sessions.agent("api")
    BACK[how](tmux)
    assert support.wait_until(lambda: not support.alive(agent), 5)
    assert support.wait_until(lambda: sessions.pairs("api", "exit").get("signalled") == "HUP")


def test_an_agent_that_ignores_the_hang_up_is_ended_all_the_same(ps, claude, tmux):
    sessions.knob(ignore="HUP,TERM", hangup=60)
    declare(row("api"))
    ps("start")
    agent = sessions.agent("api")
    tmux("kill-server")
    assert support.wait_until(lambda: not support.alive(agent), 25)


def test_a_program_left_behind_by_a_wrapper_does_not_go_on_unseen(ps, claude, home, tmux):
    real = claude.rename(home / ".local/bin/real")
    claude.write_text(f'#!/bin/sh\n{real} "$@"\n')
    claude.chmod(0o755)
    declare(row("api"))
    assert ps("start").returncode == 0
    sessions.prompt("api", "hello")
    inner = int(sessions.pairs("api", "event")["pid"])
    tmux("kill-server")
    assert support.wait_until(lambda: not support.alive(inner), 15)


def test_ctrl_z_does_not_freeze_a_session(ps, home, tmux):
    program = home / ".local/bin/claude"
    program.write_text("#!/bin/sh\nwhile read -r x; do echo got $x; done\n")
    program.chmod(0o755)
    declare(row("api"), launch={"verify_s": 1})
    ps("start")
    assert support.wait_until(lambda: sessions.agent("api"))
    tmux("send-keys", "-t", "=api:", "C-z")
    tmux("send-keys", "-t", "=api:", "word", "Enter")
    assert support.wait_until(lambda: "got word" in sessions.screen("api"))


def fake_systemctl(home, word):
    path = home / ".local/bin/systemctl"
    path.write_text(f"#!/bin/sh\necho {word}\nexit 1\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "word, retired", [("stopping", False), ("degraded", True), ("offline", True)]
)
def test_a_shutdown_is_not_a_person(home, api, word, retired):
    fake_systemctl(home, word)
    sessions.type_line("api", "/exit")
    assert support.wait_until(lambda: sessions.pairs("api", "exit"))
    assert sessions.pairs("api", "exit")["system"] == word
    assert support.wait_until(lambda: (state() / "api.retired").exists(), 1) is retired


def test_without_hooks_a_clean_exit_with_a_record_is_an_end(ps, claude, home):
    configure()
    settings = home / ".config" / sessions.NAME / "settings.api.json"
    declare(row("api"))
    settings.write_text('{"disableAllHooks": true}')
    program = home / ".local/bin/claude"
    program.write_text(
        "#!/usr/bin/python3 -IS\nimport os, time\n"
        "home = os.environ['HOME'] + '/.claude/sessions'\nos.makedirs(home, exist_ok=True)\n"
        "path = f'{home}/{os.getpid()}.json'\nopen(path, 'w').write('{}')\n"
        "input()\nos.unlink(path)\n"
    )
    ps("start")
    assert support.wait_until(lambda: sessions.agent("api"))
    record = sessions.claude_folder() / "sessions" / f"{sessions.agent('api')}.json"
    assert support.wait_until(record.exists)
    assert support.wait_until(lambda: False, 0.6) is False  # the supervisor looks after 0.25 s
    support.run_tmux("send-keys", "-t", "=api:", "Enter")
    assert support.wait_until(lambda: (state() / "api.retired").exists())


def test_leaving_the_trust_prompt_is_no_end(ps, claude):
    configure(trust={"open": False})
    folder = os.path.expanduser("~/work")
    os.mkdir(folder)
    ps("open", cwd=folder)
    support.run_tmux("send-keys", "-t", "=work:", "Escape")
    assert support.wait_until(lambda: sessions.pairs("work", "exit").get("rc") == "0")
    assert sessions.pairs("work", "exit")["deliberate"] == "no"
    assert not (state() / "work.retired").exists()


def test_the_last_screen_of_a_crash_is_kept(ps, api):
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: (state() / "api.screen").exists())
    assert "ANSWER to: hello" in (state() / "api.screen").read_text()


def test_the_status_of_claude_is_the_status_of_run(home, claude):
    configure()
    argv = [support.sys.executable, "-IS", support.SESSIONS, "run", "api"]
    env = {**os.environ, "FAKE_CLAUDE_EXIT": "7"}
    assert subprocess.run(argv, env=env, stdin=subprocess.DEVNULL).returncode == 7


@pytest.mark.parametrize("words", [[], ["a b"], ["x", "not-an-id"], ["x", "y", "z"], ["-x"]])
def test_run_refuses_what_it_cannot_run(ps, words):
    done = ps("run", *words)
    assert done.returncode == 2 and done.stderr.startswith("persistent-sessions: ")


def with_clock(home, code):
    """Return the program with something done to its clock first."""
    copy = home / "program.py"
    text = Path(support.SESSIONS).read_text()
    copy.write_text(text.replace("import time\n", f"import time\nclock = time.time\n{code}\n", 1))
    return support.Program(str(copy))


def test_a_clock_that_is_set_back_ends_no_session(home, claude):
    code = "if sys.argv[1:2] != ['run']: time.time = lambda: clock() - 7200"
    declare(row("api"))
    assert with_clock(home, code)("start").returncode == 0
    sessions.prompt("api", "hello")
    os.kill(sessions.agent("api"), signal.SIGINT)
    assert support.wait_until(lambda: sessions.pairs("api", "exit"))
    assert sessions.pairs("api", "exit")["reason"] == "other"
    assert not (state() / "api.retired").exists()


def test_a_clock_that_is_set_is_no_time_that_passed(home, claude):
    code = "moments = [100.0] * (sys.argv[1:2] == ['run'])\n"
    code += "time.time = lambda: moments.pop() if moments else clock()"
    sessions.knob(exit=1)
    declare(row("api"))
    assert with_clock(home, code)("start").returncode == 1
    assert sessions.pairs("api", "health")["failures"] == "1"


def test_run_by_hand_makes_no_second_writer(ps, api):
    kept = sessions.pairs("api", "run")
    writes = "persistent-sessions: run: {}: pid {} writes this conversation ({})\n"
    for words in (["api"], ["api", api]):
        done = ps("run", *words)
        assert done.returncode == 1
        assert done.stderr.startswith(writes.format("api", kept["pid"], "session 'api'"))
    done = ps("run", "web", api)
    assert done.returncode == 1
    assert done.stderr.startswith(writes.format("web", kept["claude"], "in tmux session 'api'"))
    assert [*sessions.claudes()] == [int(kept["claude"])]
    assert sessions.pairs("api", "run") == kept and not (state() / "web.run").exists()


def test_a_renamed_session_keeps_its_conversation_under_the_new_name(ps, api, tmux):
    tmux("rename-session", "-t", "=api", "new")
    old = head_id("api")
    sessions.type_line("new", "/clear")
    assert support.wait_until(lambda: head_id("new") not in ("", old))
    assert head_id("api") == old
    done = ps("start")
    assert done.returncode == 0 and "api: LIVE: as 'new'" in done.stderr
    sessions.prompt("new", "later")
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    done = ps("start")
    assert f"new: LAUNCH: resumed {head_id('new')}" in done.stderr and done.returncode == 0
    assert set(sessions.panes()) == {"new"}


def test_a_rename_without_any_event_loses_nothing(ps, api, tmux):
    tmux("rename-session", "-t", "=api", "new")
    ps("start")
    assert head_id("new") == api
    sessions.type_line("new", "/exit")
    assert support.wait_until(lambda: (state() / "api.retired").exists())
    assert support.wait_until(lambda: (state() / "new.retired").exists())
    assert ps("start").returncode == 0 and sessions.panes() == {}


def test_a_second_window_keeps_its_session_and_the_conversation_comes_back_in_it(ps, api, tmux):
    tmux("new-window", "-d", "-t", "=api:", "sleep", "300")
    os.kill(sessions.agent("api"), signal.SIGKILL)
    assert support.wait_until(lambda: sessions.ended("api"))
    done = ps("start")
    assert done.returncode == 0 and f"resumed {api}" in done.stderr
    windows = tmux("list-panes", "-s", "-t", "=api", "-F", "#{pane_pid}").stdout.split()
    assert len(windows) == 2


AT_ONCE = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import persistent_sessions as program
program.listen()
for number in (signal.SIGTERM, signal.SIGHUP) * 30:
    pid = program.start_child(program.Job(("sleep", "30"), "/", os.environ), -1)
    os.kill(pid, number)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -number
"""


def test_a_signal_to_an_agent_that_is_just_starting_is_not_lost():
    argv = [support.sys.executable, "-IS", "-c", AT_ONCE, support.ROOT]
    assert subprocess.run(argv, timeout=20).returncode == 0


LATE = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
import persistent_sessions as program
wakeups, me = program.listen(), os.getpid()
pid = program.start_child(program.Job(("true",), "/", os.environ), -1)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

def settle():
    os.kill(me, signal.SIGCHLD)
    threading.Timer(0.2, os.kill, (me, signal.SIGHUP)).start()
    return 20.0

print(*program.supervise(pid, -1, wakeups, lambda: True, settle))
"""


def test_the_end_of_the_agent_does_not_cut_the_wait_for_a_late_hang_up_short():
    argv = [support.sys.executable, "-IS", "-c", LATE, support.ROOT]
    done = subprocess.run(argv, timeout=20, capture_output=True, text=True)
    assert done.stdout == "0 HUP\n", (done.stdout, done.stderr)


LONG = """
import os, select, signal, sys, time
sys.path.insert(0, sys.argv[1])
import persistent_sessions as program
wakeups, now, looks = program.listen(), [0.0], []
pid = program.start_child(program.Job(("sleep", "60"), "/", os.environ), -1)

class Clock:
    def register(self, fd, mask):
        pass

    def poll(self, left):
        now[0] += (left or 0) / 1000
        if left is None:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

def look():
    looks.append(now[0])
    return now[0] > 7200

select.poll, time.monotonic = Clock, lambda: now[0]
program.supervise(pid, -1, wakeups, look, lambda: 0.0)
print(looks[-1] > 7200, max(b - a for a, b in zip(looks, looks[1:])) <= 30)
"""


def test_a_dialog_that_was_answered_after_hours_hides_no_session():
    argv = [support.sys.executable, "-IS", "-c", LONG, support.ROOT]
    done = subprocess.run(argv, timeout=20, capture_output=True, text=True)
    assert done.stdout == "True True\n", (done.stdout, done.stderr)
