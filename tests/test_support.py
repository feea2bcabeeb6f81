"""The test's own tools: a test that waits, kills or looks at a screen relies on them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
import support
from support import wait_until


def test_wait_until_returns_the_first_true_answer():
    answers = iter([0, "", "yes"])
    assert wait_until(lambda: next(answers), 5) == "yes"


def test_wait_until_gives_up_in_time():
    assert wait_until(lambda: 0, 0.05) == 0


def test_the_environment_is_private(home):
    strange = ("XDG_STATE", "XDG_CONFIG", "TMUX_PANE", "CLAUDE", "GIT_", "DBUS_SESSION")
    assert not [name for name in os.environ if name.startswith(strange)]
    assert os.environ["HOME"] == str(home)
    assert os.environ["PATH"].startswith(f"{home}/.local/bin:")


def test_the_socket_of_the_private_tmux_is_short_enough(private):
    assert len(os.path.join(os.environ["TMUX_TMPDIR"], "tmux-12345", "a" * 64)) < 107


@pytest.mark.tmux
def test_tmux_is_private_and_ends_with_its_folder(tmux, private):
    assert tmux("new-session", "-d", "-s", "one", "sleep 300").returncode == 0
    (socket,) = support.sockets_below(str(private))
    pids = support.tmux_pids(socket)
    support.end_tmux_below([str(private)])
    assert len(pids) == 2 and wait_until(lambda: not any(map(support.alive, pids)), 5)


def test_a_left_over_process_is_found_by_its_home_and_ended(home):
    argv = ["sh", "-c", 'trap "" HUP TERM; sleep 300 & wait']
    process = subprocess.Popen(argv, start_new_session=True)
    marked = wait_until(lambda: len(p := support.pids_marked("HOME", str(home))) == 2 and p, 5)
    support.end_processes(marked, 0.05)
    assert process.wait(5) == -signal.SIGKILL
    assert wait_until(lambda: not any(map(support.alive, marked)), 5)


def test_a_terminal_has_the_size_it_was_given(terminal):
    screen = terminal("stty", "size", size=(33, 101))
    screen.expect("33 101")
    assert screen.wait() == 0


def test_a_terminal_answers_keys_and_reports_a_signal(terminal):
    screen = terminal("sh", "-c", "read x; echo got-$x; kill -9 $$")
    screen.send("word\r")
    screen.expect("got-word")
    assert screen.wait() == -signal.SIGKILL


def test_a_terminal_strips_escape_sequences(terminal):
    screen = terminal("printf", r"\033[1;31mred\033[0m\033]0;title\007 \033(Bend")
    screen.wait()
    assert screen.text() == "red end"


def test_hanging_up_a_terminal_ends_the_command(terminal):
    screen = terminal("sh", "-c", "echo ready; exec sleep 300")
    screen.expect("ready")
    screen.hang_up()
    assert wait_until(lambda: screen.process.poll() == -signal.SIGHUP, 5)


def test_a_program_runs_isolated(private):
    script = private / "shows.py"
    script.write_text("import sys; print(sys.flags.isolated, sys.flags.no_site, sys.argv[1:])\n")
    assert support.Program(str(script))("a b", "").stdout == "1 1 ['a b', '']\n"


def run_a_test(folder, text, env):
    """Run one test file under a copy of our conftest, as pytest would in another clone."""
    (folder / "test_it.py").write_text(text)
    for name in ("conftest.py", "support.py", "boxlib.py"):
        shutil.copy(os.path.join(support.TESTS, name), folder)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), **env}
    return subprocess.run(argv, env=clean, stdout=subprocess.PIPE, encoding="utf-8").stdout


@pytest.mark.parametrize(
    "reason, env, outcome",
    [
        ("no mood", {}, "1 skipped"),
        ("no mood", {"CI": "true"}, "1 failed"),
        (support.ABSENT + "x", {"CI": "true"}, "1 skipped"),
    ],
)
def test_a_skip_in_ci_fails_unless_the_machine_lacks_something(private, reason, env, outcome):
    text = f"import pytest\ndef test_it(): pytest.skip({reason!r})\n"
    assert outcome in run_a_test(private, text, env)


def test_a_test_that_hangs_is_interrupted(private):
    text = "import pytest, signal\n@pytest.mark.limit(0.2)\ndef test_it(): signal.pause()\n"
    assert "not done in 0.2 s" in run_a_test(private, text, {})
