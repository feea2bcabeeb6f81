"""With the real claude: a killed session's tasks are the next one's, on the screen and for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from adopt_support import HOOK
from harness import claude
from harness.fixtures import PATIENCE, Real, claude_binary, real_claude  # noqa: F401
from support import alive, wait_until

BYPASS = "--dangerously-skip-permissions"

pytestmark = [pytest.mark.claude_real, pytest.mark.limit(300)]


@pytest.fixture
def installed(real_claude: Real) -> Real:  # noqa: F811
    """Install the hook into the settings of a person who already has some."""
    path = os.path.join(real_claude.home, ".claude", "settings.json")
    claude.write_json(path, {"skipDangerousModePermissionPrompt": True, "disableAgentView": True})
    subprocess.run([HOOK, "install"], env=real_claude.env, check=True)
    return real_claude


def start(real, name):
    """Start a session in a pane of its own; return its id."""
    real.open(name, BYPASS, settings="")
    real.ready(name)
    return real.record(name)["sessionId"]


def kill(real, name):
    """End a session as a crash does."""
    pid = real.record(name)["pid"]
    os.kill(pid, signal.SIGKILL)
    real.end_status(name)
    assert wait_until(lambda: not alive(pid))


def tasks(real, session):
    """Return number and status of the tasks in a session's list."""
    found = {}
    folder = os.path.join(real.home, ".claude", "tasks", session)
    for name in os.listdir(folder):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                found[int(name[:-5])] = json.load(f)["status"]
    return found


def listed(real, name):
    """Return what the session's own TaskList says."""
    real.ask(name, f"look <<tasks>> {name}")
    last = real.asked(f"look <<tasks>> {name}")[-1]
    return json.dumps(last["body"]["messages"][-1])


def test_a_killed_sessions_tasks_are_the_next_ones(installed):
    real = installed
    start(real, "one")
    real.ask("one", "plan <<new alpha>> <<new beta>> <<new gamma>> <<mark 1 completed>>")
    kill(real, "one")
    second = start(real, "two")
    assert wait_until(lambda: os.path.isdir(f"{real.home}/.claude/tasks/{second}"), PATIENCE)
    assert tasks(real, second) == {1: "completed", 2: "pending", 3: "pending"}
    said = listed(real, "two")
    assert "beta" in said and "gamma" in said
    assert "recovered from" in json.dumps(real.asked("look <<tasks>> two")[0]["body"])
    # Claude looks at its list before its hooks run, and again when it changes it itself.
    real.ask("two", "go <<mark 2 in_progress>>")
    real.panel("two", "✔ alpha", "◼ beta", "◻ gamma")
    real.ask("two", "more <<new delta>>")
    assert tasks(real, second) == {1: "completed", 2: "in_progress", 3: "pending", 4: "pending"}


def test_a_third_and_a_fourth_start_work_like_the_second(installed):
    real = installed
    start(real, "one")
    real.ask("one", "plan <<new alpha>> <<new beta>> <<new gamma>>")
    kill(real, "one")
    start(real, "two")
    real.ask("two", "less <<mark 1 deleted>>")  # now only what it was told links it to the first
    kill(real, "two")
    third = start(real, "three")
    assert wait_until(lambda: os.path.isdir(f"{real.home}/.claude/tasks/{third}"), PATIENCE)
    real.ask("three", "more <<new delta>> <<mark 2 in_progress>>")
    kill(real, "three")
    start(real, "four")
    said = listed(real, "four")
    assert "beta" in said and "delta" in said and "alpha" not in said


def test_finished_work_stays_finished(installed):
    real = installed
    start(real, "one")
    real.ask("one", "plan <<new alpha>>")
    kill(real, "one")
    second = start(real, "two")
    real.ask("two", "do <<mark 1 completed>>")
    assert tasks(real, second) in ({1: "completed"}, {})  # the fullscreen one wipes such a list
    kill(real, "two")
    third = start(real, "three")
    real.ask("three", "hello")
    assert not os.path.exists(f"{real.home}/.claude/tasks/{third}")
    assert "alpha" not in json.dumps(real.asked("hello")[0]["body"])
