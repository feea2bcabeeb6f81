"""Machines that are not like the one this was written on: the main job is done there too.

PERSISTENT_SESSIONS_TESTS_TMUX=/path/to/tmux[:/another] has it done with these tmux as well.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import adopt_support
import pytest
import sessions
import support
from hosted import Pane
from sessions import declare, head_id, row, state
from support import ABSENT, ADOPT, SESSIONS, TESTS, wait_until

pytestmark = pytest.mark.tmux

DENY = os.path.join(TESTS, "fakes", "deny_call.py")
OTHER_TMUX = [p for p in os.environ.get("PERSISTENT_SESSIONS_TESTS_TMUX", "").split(":") if p]


def kill(*names):
    for name in names:
        os.kill(sessions.agent(name), signal.SIGKILL)
    assert wait_until(lambda: all(sessions.ended(name) for name in names))


def say(name, text):
    """Type a prompt as a person does, who first leaves what tmux shows on top of the pane."""
    support.run_tmux("send-keys", "-X", "-t", f"={name}:", "cancel")
    sessions.type_line(name, text)


def answered(name, text):
    assert wait_until(lambda: text in sessions.screen(name), 20), sessions.screen(name)


def do_the_job(ps, home, name="work"):
    """Open, talk, die, come back, clear, end: what this program is for."""
    work = home / name
    work.mkdir()
    declare(row("api"))
    opened = ps("open", cwd=work)
    assert opened.returncode == 0, opened.stderr
    done = ps("start")
    assert done.returncode == 0 and {"api", name} <= set(sessions.panes()), done.stderr
    for each in ("api", name):
        say(each, f"remember {each}")
        answered(each, f"ANSWER to: remember {each}")
    first = [head_id(each) for each in ("api", name)]
    kill("api", name)
    back = ps("start")
    assert back.returncode == 0 and all(f"resumed {i}" in back.stderr for i in first), back.stderr
    for each in ("api", name):
        say(each, "again")
        answered(each, f"knows: remember {each}")
    say(name, "/clear")
    assert wait_until(lambda: head_id(name) not in first), "the hook did not follow /clear"
    say(name, "/exit")
    assert wait_until(lambda: (state() / f"{name}.retired").exists())
    assert ps("start").returncode == 0 and name not in sessions.panes()
    states = {n: r["state"] for n, r in sessions.listed(ps).items()}
    assert states == {"api": "LIVE", name: "RETIRED"}


# ---- What people put into ~/.tmux.conf ------------------------------------

CONFIGURATIONS = {
    "things that stay": """
        set -g remain-on-exit on
        set -s exit-empty off
        set -g detach-on-destroy off""",
    "things that go": """
        set -g destroy-unattached on
        set -g history-limit 0
        set -g lock-after-time 1
        set -g lock-command 'sleep 1000'""",
    "another look": """
        set -g base-index 1
        setw -g pane-base-index 1
        set -g renumber-windows on
        set -g status off
        setw -g automatic-rename on
        setw -g allow-rename on
        set -g prefix C-a
        unbind -a -T root
        set -g mode-keys vi
        set -g mouse on""",
    "another world in the panes": """
        set -g default-command 'exec cat'
        set -g default-shell /bin/false
        set -g update-environment DISPLAY
        set-environment -g PATH /nowhere""",
    "hooks": """
        set-hook -g session-created 'display-message hello'
        set-hook -g after-new-session 'rename-window mine ; set-option status off'
        set-hook -g pane-exited 'display-message gone'""",
    "sessions of its own": """
        new-session -d -s mine
        new-session -d -s notes""",
    "options that do not exist": """
        set -g no-such-option 1
        set -g history-limit many
        source-file ~/nowhere.conf
        run-shell ~/.tmux/plugins/tpm/tpm""",
    "what does not parse": """
        set -g status off
        if-shell true {
        bind x 'kill""",
}


@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_of_tmux_changes_nothing(ps, claude, home, text):
    sessions.conf(text + "\n")
    do_the_job(ps, home)


def test_a_hook_that_renames_every_session_loses_none(ps, claude, home):
    sessions.conf("set-hook -g after-new-session 'rename-session \"x-#{session_name}\"'\n")
    declare(row("api"))
    done = ps("start")
    assert done.returncode == 0, done.stderr
    assert set(sessions.panes()) == {"x-api"}
    sessions.prompt("x-api", "hello")
    listed = sessions.listed(ps)
    assert (listed["api"]["state"], listed["api"]["note"]) == ("LIVE", "as 'x-api'")
    first, pids = head_id("x-api"), sessions.panes()
    assert ps("start").returncode == 0 and sessions.panes() == pids
    kill("api")
    done = ps("start")
    assert done.returncode == 0 and f"resumed {first}" in done.stderr, done.stderr


def test_consent_is_given_although_the_configuration_is_broken(ps, claude):
    """tmux shows what is wrong in it on top of the first pane."""
    sessions.conf("set -g no-such-option 1\n")
    declare(row("api"), trust={"open": False})
    settings = Path(os.environ["HOME"], ".config", sessions.NAME, "settings.api.json")
    settings.write_text('{"skipDangerousModePermissionPrompt": false}')
    done = ps("start")
    assert done.returncode == 1 and "BLOCKED" in done.stderr, done.stderr
    done = ps("trust", "api")
    assert done.returncode == 0, done.stderr
    sessions.prompt("api", "hello")
