"""What the program takes for granted about Claude Code, asked of the real one and of the stand-in.

Seen on 2.1.332.  When one of these fails with the real binary, a decision in the program that rests
on it has to be looked at; when it fails with the stand-in only, the stand-in has drifted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import uuid

import pytest
from harness import claude
from harness.fixtures import PATIENCE, Real, agent, claude_binary, real_claude  # noqa: F401
from support import start_time, wait_until

pytestmark = pytest.mark.tmux

BYPASS = "--dangerously-skip-permissions"
NOBODY = "00000000-0000-4000-8000-000000000000"

# ruff: noqa: F811 (a fixture is imported and then named as an argument)


def transcripts_folder(agent: Real) -> str:
    """Make and return the folder in which Claude keeps the transcripts of the project."""
    name = re.sub("[^A-Za-z0-9]", "-", agent.project)
    folder = os.path.join(agent.home, ".claude", "projects", name)
    os.makedirs(folder, exist_ok=True)
    return folder


def entry(kind: str, **extra: object) -> dict[str, object]:
    message = {"role": kind, "content": "hello"}
    if kind == "assistant":
        message = {"role": kind, "content": [{"type": "text", "text": "hello"}]}
    return {"type": kind, "message": message, "uuid": str(uuid.uuid4()), **extra}


def write_transcript(agent: Real, data: bytes) -> str:
    session = str(uuid.uuid4())
    with open(os.path.join(transcripts_folder(agent), session + ".jsonl"), "wb") as f:
        f.write(data)
    return session


def lines(*entries: dict[str, object]) -> bytes:
    # Compact, as Claude writes: in other folders than its own it knows records by their text.
    return b"".join(json.dumps(e, separators=(",", ":")).encode() + b"\n" for e in entries)


def trusted(agent: Real) -> object:
    with open(os.path.join(agent.home, ".claude.json"), encoding="utf-8") as f:
        projects = json.load(f).get("projects", {})
    return projects.get(agent.project, {}).get("hasTrustDialogAccepted")


# ---- The record of a running session --------------------------------------


def test_the_record_names_process_conversation_and_pane(agent):
    agent.open("w")
    agent.ready("w")
    record = agent.record("w")
    assert record["procStart"] == start_time(record["pid"])
    assert record["cwd"] == agent.project
    assert (record["kind"], record["entrypoint"]) == ("interactive", "cli")
    pane = agent.tmux("display-message", "-p", "-t", "=w:", "w:#{window_id}.#{pane_id}")
    assert record["tmux"] == pane.strip()


def test_the_record_keeps_the_name_that_the_tmux_session_had_at_the_start(agent):
    agent.open("w")
    agent.ready("w")
    agent.tmux("rename-session", "-t", "=w", "other")
    agent.tmux("send-keys", "-t", "=other:", "-l", "x")
    assert agent.see("other", "❯\N{NO-BREAK SPACE}x")
    assert agent.record("w")["tmux"].startswith("w:")


def test_a_killed_claude_leaves_its_record_behind(agent):
    agent.open("w")
    pid = agent.record("w")["pid"]
    os.kill(pid, signal.SIGKILL)
    agent.end_status("w")
    assert [r["pid"] for r in agent.records()] == [pid]
    assert agent.events("SessionEnd") == []


def test_a_question_to_the_person_is_in_the_record(agent):
    agent.open("w", "--permission-mode", "default")
    agent.ready("w")
    agent.type("w", "<<sh touch here>>" if agent.net.pid else "!ask")
    agent.see("w", "Do you want to proceed?")
    assert wait_until(lambda: agent.record("w")["status"] == "waiting", PATIENCE)
    assert agent.record("w")["waitingFor"] == "permission prompt"


def test_a_session_started_below_another_one_saves_nothing(agent):
    agent.open("w", added=("CLAUDE_CODE_CHILD_SESSION=1",))
    agent.see("w", "Transcript saving is off")
    agent.event(0, "SessionStart")
    assert agent.records() == []


# ---- The hooks ------------------------------------------------------------


def test_the_first_hook_call_says_startup_and_which_conversation(agent):
    agent.open("w")
    payload = agent.event(0)
    keys = {"session_id", "transcript_path", "cwd", "hook_event_name", "source", "model"}
    assert set(payload) == keys
    assert (payload["hook_event_name"], payload["source"]) == ("SessionStart", "startup")
    assert payload["session_id"] == agent.record("w")["sessionId"]


def test_a_hook_knows_its_claude_and_its_pane_and_has_no_terminal(agent):
    out = os.path.join(agent.home, "out")
    probe = f"{{ env; true </dev/tty || echo no tty; }} >{out} 2>&1"
    hook = {"hooks": [{"type": "command", "command": probe}]}
    agent.open("w", settings=agent.settings(hooks={"SessionStart": [hook]}))
    assert wait_until(lambda: os.path.exists(out) and "no tty" in open(out).read(), PATIENCE)
    with open(out, encoding="utf-8") as f:
        said = dict(line.split("=", 1) for line in f.read().split("\n") if "=" in line)
    record = agent.record("w")
    assert said["CLAUDE_PID"] == str(record["pid"])
    assert said["CLAUDE_CODE_SESSION_ID"] == record["sessionId"]
    assert said["TMUX_PANE"] == record["tmux"].rpartition(".")[2]
    assert (said["CLAUDECODE"], said["CLAUDE_CODE_CHILD_SESSION"]) == ("1", "1")


def test_the_record_comes_while_the_hook_runs_if_not_before(agent):
    out = os.path.join(agent.home, "out")
    record = f"{agent.home}/.claude/sessions/$CLAUDE_PID.json"
    probe = f"until [ -s {record} ]; do sleep 0.05; done; cat {record} >{out}"
    hook = {"hooks": [{"type": "command", "command": probe}]}
    agent.open("w", settings=agent.settings(hooks={"SessionStart": [hook]}))
    assert wait_until(lambda: os.path.exists(out) and os.path.getsize(out) > 0, PATIENCE)
    with open(out, encoding="utf-8") as f:
        assert json.load(f)["sessionId"] == agent.record("w")["sessionId"]


def test_equal_command_strings_in_two_settings_run_once(agent):
    with open(agent.settings(), encoding="utf-8") as f:
        claude.write_json(f"{agent.home}/.claude/settings.json", {"hooks": json.load(f)["hooks"]})
    agent.open("w")
    agent.ready("w")
    agent.type("w", "/exit")
    agent.end_status("w")
    assert [e["hook_event_name"] for e in agent.events()] == ["SessionStart", "SessionEnd"]


def test_a_command_with_quotes_and_blanks_reaches_the_shell_unchanged(agent):
    out = os.path.join(agent.home, "out")
    code = f'import sys; sys.path.append("/a b"); open("{out}", "w").write(sys.path[-1])'
    hook = {"hooks": [{"type": "command", "command": f"/usr/bin/python3 -IS -c '{code}'"}]}
    agent.open("w", settings=agent.settings(hooks={"SessionStart": [hook]}))
    assert wait_until(lambda: os.path.exists(out) and open(out).read() == "/a b", PATIENCE)


def test_a_slow_hook_does_not_hold_the_prompt_back(agent):
    hook = {"hooks": [{"type": "command", "command": "exec sleep 600"}]}
    agent.open("w", settings=agent.settings(hooks={"SessionStart": [hook]}))
    agent.ready("w")
    agent.keys("w", "-l", "typed")
    assert agent.see("w", "❯\N{NO-BREAK SPACE}typed")


def test_the_last_hook_gets_little_time(agent):
    hook = {"hooks": [{"type": "command", "command": "exec sleep 600"}]}
    agent.open("w", settings=agent.settings(hooks={"SessionEnd": [hook]}))
    agent.ready("w")
    before = time.monotonic()
    agent.type("w", "/exit")
    assert agent.end_status("w") == "0"
    assert time.monotonic() - before < 15


# ---- Which conversation ---------------------------------------------------


def test_resuming_keeps_the_id_and_appends_to_the_file_from_any_folder(agent):
    agent.open("w")
    agent.ready("w")
    path = agent.say("w", "first")
    session = agent.record("w")["sessionId"]
    agent.type("w", "/exit")
    agent.end_status("w")
    other = os.path.join(agent.home, "other")
    os.mkdir(other)
    claude.prepare_home(agent.home, agent.project, other)
    agent.open("v", "--resume", session, cwd=other)
    agent.ready("v")
    assert agent.record("v")["sessionId"] == session
    assert agent.say("v", "second") == path
    assert agent.prompts(session) == ["first", "second"]
    assert agent.events("SessionStart")[-1]["source"] == "resume"


def test_without_a_prompt_there_is_no_conversation_to_come_back_to(agent):
    agent.open("w")
    agent.ready("w")
    session = agent.record("w")["sessionId"]
    agent.type("w", "/exit")
    agent.end_status("w")
    assert claude.transcript(agent.home, session) == ""
    done = agent.claude("-p", "--resume", session, "hello")
    assert done.returncode == 1
    assert f"No conversation found with session ID: {session}" in done.stdout + done.stderr


def test_an_unknown_id_in_a_pane_ends_it_without_a_session_start(agent):
    agent.open("w", "--resume", NOBODY)
    assert agent.end_status("w") == "1"
    assert f"No conversation found with session ID: {NOBODY}" in agent.screen("w")
    assert [e["hook_event_name"] for e in agent.events()] == ["SessionEnd"]
    assert agent.records() == []


@pytest.mark.parametrize(
    "data",
    [
        lines(entry("user")),
        lines(entry("assistant")),
        lines(entry("user")) + b"\0" * 300,
        lines(entry("user")) + lines(entry("user"))[:-20],
        b"\0" * 300 + b"\n" + lines(entry("user")),
        lines({"type": "system", "subtype": "local_command", "content": "", "uuid": NOBODY}),
    ],
    ids=["user", "answer", "nul-after", "cut-after", "nul-line-before", "system"],
)
def test_one_readable_record_makes_a_conversation(agent, data):
    done = agent.claude("-p", "--resume", write_transcript(agent, data), "hello")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 600,
        b"\0" * 300 + lines(entry("user")),
        lines(entry("user"))[:-20],
        lines(entry("user", isSidechain=True)),
        lines({"type": "summary", "summary": "x", "leafUuid": NOBODY}, {"type": "mode"}),
    ],
    ids=["empty", "nul", "nul-before", "cut", "sidechain", "no-message"],
)
def test_nothing_readable_is_no_conversation(agent, data):
    done = agent.claude("-p", "--resume", write_transcript(agent, data), "hello")
    assert done.returncode == 1
    assert "No conversation found" in done.stdout + done.stderr


def test_clear_starts_another_conversation_that_survives_a_kill_at_once(agent):
    agent.open("w")
    agent.ready("w")
    agent.say("w", "first")
    old = agent.record("w")
    agent.type("w", "/clear")
    end, start = agent.event(1), agent.event(2)
    assert (end["session_id"], end["reason"]) == (old["sessionId"], "clear")
    assert start["source"] == "clear" and start["session_id"] != old["sessionId"]
    assert wait_until(lambda: agent.record("w")["sessionId"] == start["session_id"], PATIENCE)
    assert wait_until(lambda: len(agent.transcript(start["session_id"])) >= 4, PATIENCE)
    os.kill(old["pid"], signal.SIGKILL)
    assert agent.claude("-p", "--resume", start["session_id"], "hello").returncode == 0


def test_compacting_keeps_the_conversation(agent):
    agent.open("w")
    agent.ready("w")
    agent.say("w", "first")
    session = agent.record("w")["sessionId"]
    agent.type("w", "/compact")
    start = agent.event(1, "SessionStart")
    assert (start["source"], start["session_id"]) == ("compact", session)
    assert agent.record("w")["sessionId"] == session


def test_resuming_inside_a_session_takes_over_the_other_id(agent):
    other = write_transcript(agent, lines(entry("user", cwd=agent.project, sessionId=NOBODY)))
    agent.open("w")
    agent.ready("w")
    agent.say("w", "first")
    agent.type("w", "/resume " + other)
    end, start = agent.event(0, "SessionEnd"), agent.event(1, "SessionStart")
    assert end["reason"] == "resume"
    assert (start["source"], start["session_id"]) == ("resume", other)
    assert wait_until(lambda: agent.record("w")["sessionId"] == other, PATIENCE)


def test_a_fork_has_another_id_and_says_fork(agent):
    session = write_transcript(agent, lines(entry("user")))
    agent.open("w", "--resume", session, "--fork-session")
    start = agent.event(0)
    assert start["source"] == "fork" and start["session_id"] != session
    assert agent.record("w")["sessionId"] == start["session_id"]


def test_claude_itself_lets_two_processes_write_one_conversation(agent):
    agent.open("w")
    agent.ready("w")
    agent.say("w", "first")
    session = agent.record("w")["sessionId"]
    agent.open("v", "--resume", session)
    agent.ready("v")
    assert agent.record("v")["sessionId"] == agent.record("w")["sessionId"] == session


# ---- Ways to end ----------------------------------------------------------


def typed_exit(agent: Real, pid: int) -> None:
    agent.type("w", "/exit")


def twice(key: str):
    def press(agent: Real, pid: int) -> None:
        agent.keys("w", key)
        agent.see("w", "again to exit")
        agent.keys("w", key)

    return press


def send(number: int):
    return lambda agent, pid: os.kill(pid, number)


ENDS = {
    "typed-exit": (typed_exit, "0", "prompt_input_exit"),
    "ctrl-d-twice": (twice("C-d"), "0", "prompt_input_exit"),
    "ctrl-c-twice": (twice("C-c"), "0", "prompt_input_exit"),
    "term": (send(signal.SIGTERM), "143", "other"),
    "hup": (send(signal.SIGHUP), "129", "other"),
    "int": (send(signal.SIGINT), "0", "other"),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_reason_of_the_end_tells_a_person_from_a_signal(agent, how):
    act, status, reason = ENDS[how]
    agent.open("w")
    agent.ready("w")
    act(agent, agent.record("w")["pid"])
    assert agent.end_status("w") == status
    assert [e["reason"] for e in agent.events("SessionEnd")] == [reason]
    assert agent.records() == []


@pytest.mark.parametrize("how", ["kill-session", "kill-pane", "kill-server"])
def test_a_terminal_that_goes_away_is_no_deliberate_end(agent, how):
    agent.open("w")
    agent.ready("w")
    agent.tmux(how, *([] if how == "kill-server" else ["-t", "=w:"]))
    assert agent.event(0, "SessionEnd")["reason"] == "other"
    assert wait_until(lambda: agent.records() == [], PATIENCE)


def test_a_suspended_claude_comes_back_when_continued(agent):
    agent.open("w")
    agent.ready("w")
    agent.press_until("w", "C-z", "is suspended")
    os.kill(agent.record("w")["pid"], signal.SIGCONT)
    agent.ready("w")
    agent.say("w", "still here")


# ---- Dialogs --------------------------------------------------------------


@pytest.mark.parametrize("key, status", [("Enter", "1"), ("Escape", "0")])
def test_refusing_trust_ends_before_any_session_began(agent, key, status):
    claude.prepare_home(agent.home)
    agent.open("w")
    agent.see("w", "❯ No, exit")
    assert agent.records() == []
    agent.press_until("w", key, "didn't start because this folder isn't trusted")
    assert agent.end_status("w") == status
    assert agent.events() == []
    assert agent.records() == []


def test_giving_trust_is_remembered_for_the_folder(agent):
    claude.prepare_home(agent.home)
    agent.open("w")
    agent.see("w", "❯ No, exit")
    agent.choose("w", "Yes, I trust this folder")
    agent.ready("w")
    assert wait_until(lambda: trusted(agent) is True, PATIENCE)


def test_giving_trust_to_the_home_is_not_remembered(agent):
    claude.prepare_home(agent.home)
    agent.project = agent.home
    agent.open("w")
    agent.see("w", "Yes lasts for this session only")
    agent.choose("w", "Yes, I trust this folder")
    agent.ready("w")
    assert wait_until(lambda: trusted(agent) is not None, PATIENCE)
    assert trusted(agent) is False


def test_trust_of_a_folder_above_is_enough(agent):
    claude.prepare_home(agent.home, agent.home)
    agent.open("w")
    agent.ready("w")


def test_refusing_the_bypass_warning_ends_with_1_and_a_session_end_without_start(agent):
    agent.open("w", BYPASS, settings=agent.settings(skipDangerousModePermissionPrompt=False))
    agent.see("w", "running in Bypass Permissions mode")
    agent.press_until("w", "Enter", "Pane is dead")
    assert agent.end_status("w") == "1"
    assert [e.get("reason") for e in agent.events()] == ["other"]


def test_accepting_the_bypass_warning_is_kept_in_the_settings(agent):
    agent.open("w", BYPASS, settings=agent.settings(skipDangerousModePermissionPrompt=False))
    agent.see("w", "running in Bypass Permissions mode")
    agent.choose("w", "Yes, I accept")
    agent.ready("w")
    with open(f"{agent.home}/.claude/settings.json", encoding="utf-8") as f:
        assert json.load(f)["skipDangerousModePermissionPrompt"] is True


def test_the_picker_is_up_while_the_record_is_there_already(agent):
    agent.open("w", "--resume", "no-such-name")
    agent.see("w", "Resume session")
    assert "status" not in agent.record("w")


def test_a_lock_older_than_ten_seconds_is_taken_over(agent):
    claude.prepare_home(agent.home)
    agent.open("w")
    agent.see("w", "Enter to confirm")
    lock = os.path.join(agent.home, ".claude.json.lock")
    os.mkdir(lock)
    os.utime(lock, (time.time() - 20,) * 2)
    agent.choose("w", "Yes, I trust this folder")
    assert wait_until(lambda: trusted(agent) is True, 8)


def test_a_young_lock_is_waited_for(agent):
    claude.prepare_home(agent.home)
    agent.open("w")
    agent.see("w", "Enter to confirm")
    assert wait_until(lambda: agent.mark("w", "Yes, I trust this folder"), PATIENCE)
    lock = os.path.join(agent.home, ".claude.json.lock")
    os.mkdir(lock)
    agent.keys("w", "Enter")
    assert not wait_until(lambda: trusted(agent) is True, 2)
    os.rmdir(lock)
    assert wait_until(lambda: trusted(agent) is True, 20)


# ---- Leaving the pane -----------------------------------------------------


def test_the_left_arrow_does_nothing_without_the_agent_view(agent):
    agent.open("w")
    agent.ready("w")
    agent.say("w", "first")
    agent.keys("w", "Left", "Left")
    agent.keys("w", "-l", "typed")
    assert agent.see("w", "❯\N{NO-BREAK SPACE}typed")
    assert "parkedJobId" not in agent.record("w")


def test_a_conversation_moved_to_the_background_is_named_where_it_was(agent):
    agent.open("w", settings=agent.settings(disableAgentView=False))
    agent.ready("w")
    agent.say("w", "first")
    session = agent.record("w")["sessionId"]
    agent.press_until("w", "Left", "moved to the background")
    assert wait_until(lambda: agent.record("w").get("parkedJobId"), PATIENCE)
    job = agent.record("w")["parkedJobId"]
    with open(f"{agent.home}/.claude/jobs/{job}/state.json", encoding="utf-8") as f:
        state = json.load(f)
    assert agent.record("w")["sessionId"] == session
    assert state["sessionId"].startswith(job)
    found = wait_until(
        lambda: [e for e in agent.transcript(session) if "continuedInSessionId" in e]
    )
    assert [e["continuedInSessionId"] for e in found] == [state["sessionId"]]


# ---- Flags ----------------------------------------------------------------


def test_remote_control_without_a_sign_in_is_ignored_in_silence(agent):
    agent.open("w", "--remote-control", "phone")
    screen = agent.ready("w")
    assert "phone" not in screen and "emote" not in screen
    assert "phone" not in json.dumps(agent.record("w"))


def test_one_answer_through_pipes(agent):
    done = agent.claude("-p", input="some words")
    assert done.returncode == 0
    assert "some words" in done.stdout


def test_root_may_not_skip_permissions(real_claude):
    del real_claude.env["IS_SANDBOX"]
    real_claude.open("w", BYPASS)
    assert real_claude.end_status("w") == "1"
    assert "cannot be used with root" in real_claude.screen("w")


# ---- The task list (the real one only) ------------------------------------


@pytest.mark.claude_real
def test_the_task_tools_are_off_unless_asked_for(real_claude):
    done = real_claude.claude("-p", "hello <<new a task>>")
    assert "TaskCreate is disabled" in done.stdout or "No such tool" in done.stdout, done
    assert not os.path.exists(f"{real_claude.home}/.claude/tasks")


@pytest.mark.claude_real
def test_the_task_tools_come_with_the_settings_environment(real_claude):
    settings = real_claude.settings(env={"CLAUDE_CODE_ENABLE_TODO_TOOLS": "1"})
    real_claude.open("w", BYPASS, settings=settings)
    real_claude.ready("w")
    real_claude.ask("w", "remember <<new a task>>")
    session = real_claude.record("w")["sessionId"]
    with open(f"{real_claude.home}/.claude/tasks/{session}/1.json", encoding="utf-8") as f:
        assert json.load(f)["subject"] == "a task"


@pytest.mark.claude_real
def test_the_version_under_test_is_the_one_the_facts_are_from(claude_binary):
    done = subprocess.run([claude_binary, "--version"], stdout=subprocess.PIPE, encoding="utf-8")
    assert done.stdout.startswith(claude.VERSION)
