"""Each way in which the real claude can end leads to one right verdict: ended, or back."""

from __future__ import annotations

import os
import signal

import pytest
from harness.fixtures import claude_binary, real_claude  # noqa: F401
from harness.program import Ours, ours  # noqa: F401
from support import run_tmux, wait_until

# ruff: noqa: F811 (a fixture is imported and then named as an argument)

pytestmark = [pytest.mark.tmux, pytest.mark.claude_real]


def typed_exit(ours: Ours) -> None:
    ours.real.type("work", "/exit")


def pressed_twice(key: str):
    def press(ours: Ours) -> None:
        ours.real.keys("work", key)
        ours.real.see("work", "again to exit")
        ours.real.keys("work", key)

    return press


def signalled(number: int):
    return lambda ours: os.kill(ours.real.record("work")["pid"], number)


def tmux(*args: str):
    return lambda ours: run_tmux(*args)


def server_pid() -> int:
    return int(run_tmux("display-message", "-p", "-t", "=work:", "#{pid}").stdout)


def server_killed(ours: Ours) -> None:
    os.kill(server_pid(), signal.SIGKILL)


def both_told_to_go(ours: Ours) -> None:
    server = server_pid()
    os.kill(ours.real.record("work")["pid"], signal.SIGTERM)
    os.kill(server, signal.SIGTERM)


ON_PURPOSE = {
    "typed-exit": typed_exit,
    "ctrl-d-twice": pressed_twice("C-d"),
    "ctrl-c-twice": pressed_twice("C-c"),
}
OTHERWISE = {
    "term": signalled(signal.SIGTERM),
    "hup": signalled(signal.SIGHUP),
    "int": signalled(signal.SIGINT),
    "kill": signalled(signal.SIGKILL),
    "quit": signalled(signal.SIGQUIT),
    "kill-session": tmux("kill-session", "-t", "=work"),
    "kill-pane": tmux("kill-pane", "-t", "=work:"),
    "kill-server": tmux("kill-server"),
    "respawn-pane": tmux("respawn-pane", "-k", "-t", "=work:", "true"),
    "server-killed": server_killed,
    "both-at-once": both_told_to_go,
}


@pytest.mark.parametrize("how", ON_PURPOSE)
def test_what_a_person_ends_stays_ended(ours, how):
    ours.open("work")
    ours.real.ask("work", "before")
    ON_PURPOSE[how](ours)
    ours.wait_for_end("work")
    assert ours.retired("work")
    assert ours.ps("start").returncode == 0
    assert ours.row("work")["state"] == "RETIRED"


@pytest.mark.parametrize("how", OTHERWISE)
def test_what_ends_otherwise_comes_back_in_its_conversation(ours, how):
    ours.open("work")
    ours.real.ask("work", "before")
    session = ours.id("work")
    OTHERWISE[how](ours)
    ours.wait_for_end("work")
    assert not ours.retired("work")
    ours.start("work")
    assert "before" in ours.real.ask("work", "after")["earlier"]
    assert ours.id("work") == session
    both = ["before", "after"]
    assert wait_until(lambda: ours.real.prompts(session) == both), ours.real.prompts(session)


def test_a_stop_key_does_not_freeze_the_session(ours):
    ours.open("work")
    ours.real.keys("work", "C-z")
    ours.real.press_until("work", "x", "❯\N{NO-BREAK SPACE}x")
    ours.real.keys("work", "C-u")
    ours.real.ask("work", "still here")
