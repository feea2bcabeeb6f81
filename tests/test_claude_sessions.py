"""The program with the real claude: ids followed, prompts named, consent given, nothing lost."""

from __future__ import annotations

import json
import os

import pytest
import sessions
from harness import claude
from harness.fixtures import PATIENCE, claude_binary, real_claude  # noqa: F401
from harness.program import ours  # noqa: F401
from support import Terminal, wait_until

# ruff: noqa: F811 (a fixture is imported and then named as an argument)

pytestmark = [pytest.mark.tmux, pytest.mark.claude_real]

BYPASS = "--dangerously-skip-permissions"


def settings_of(ours, name, **values):
    """Write the settings that are merged over ours for one session."""
    path = os.path.join(ours.real.home, ".config", sessions.NAME, f"settings.{name}.json")
    claude.write_json(path, values)


# ---- Which conversation ---------------------------------------------------


def test_a_plain_claude_in_a_shell_opens_a_session_whose_id_is_filed(ours):
    ours.ps("install")
    os.makedirs(os.path.join(ours.real.home, "work"))
    argv = ours.real.net.inside("bash", "-ic", "claude")
    window = Terminal(*argv, cwd=os.path.join(ours.real.home, "work"), size=(40, 120))
    try:
        window.expect("shift+tab to cycle", PATIENCE)
        assert wait_until(lambda: sessions.head_id("work") == ours.id("work"), PATIENCE)
    finally:
        window.end()


def test_clear_is_followed_and_survives_a_crash(ours):
    ours.open("work")
    ours.real.ask("work", "before")
    old = ours.id("work")
    ours.real.type("work", "/clear")
    assert wait_until(lambda: sessions.head_id("work") not in ("", old), PATIENCE)
    ours.real.ask("work", "in the new one")
    ours.crash("work")
    ours.start("work")
    assert ours.real.ask("work", "after")["earlier"][-1] == "in the new one"
    assert ours.id("work") != old


def test_a_crash_right_after_clear_comes_back_in_the_cleared_conversation(ours):
    ours.open("work")
    ours.real.ask("work", "before")
    ours.real.type("work", "/clear")
    assert wait_until(lambda: len(ours.real.transcript(sessions.head_id("work"))) in range(4, 9))
    session = sessions.head_id("work")
    ours.crash("work")
    ours.start("work")
    assert ours.id("work") == session


def test_compacting_leaves_the_id_as_it_is(ours):
    ours.open("work")
    ours.real.ask("work", "before")
    session = ours.id("work")
    ours.real.type("work", "/compact")
    assert wait_until(lambda: sessions.pairs("work", "event").get("why") == "compact", PATIENCE)
    assert sessions.head_id("work") == session


def test_resuming_another_conversation_inside_is_followed(ours):
    ours.open("work")
    ours.real.ask("work", "first")
    first = ours.id("work")
    ours.real.type("work", "/clear")
    assert wait_until(lambda: sessions.head_id("work") not in ("", first), PATIENCE)
    ours.real.ask("work", "second")
    ours.real.type("work", "/resume " + first)
    assert wait_until(lambda: sessions.head_id("work") == first, PATIENCE)
    ours.crash("work")
    ours.start("work")
    assert "first" in ours.real.ask("work", "after")["earlier"]


def test_a_fork_is_followed(ours):
    sessions.declare(sessions.row("work"), claude={"start_args": []})
    ours.start("work")
    ours.real.ask("work", "before")
    session = ours.id("work")
    ours.crash("work")
    sessions.declare(sessions.row("work"), claude={"start_args": ["--fork-session"]})
    ours.ps("start", "work")
    ours.real.ready("work")
    assert wait_until(lambda: sessions.head_id("work") not in ("", session), PATIENCE)
    assert "before" in ours.real.ask("work", "after")["earlier"]
    assert sessions.head_id("work") == ours.id("work")


def test_a_conversation_that_runs_elsewhere_is_not_resumed(ours):
    ours.open("work")
    ours.real.ask("work", "before")
    session = ours.id("work")
    ours.crash("work")
    ours.real.open("elsewhere", "--resume", session, cwd=os.path.join(ours.real.home, "work"))
    pid = ours.real.record("elsewhere")["pid"]
    done = ours.ps("start", "work")
    assert done.returncode == 1
    assert "HELD" in done.stderr and str(pid) in done.stderr, done.stderr


def test_a_session_without_a_prompt_comes_back_with_a_new_conversation(ours):
    ours.real.claude("-p", "somewhere else")
    ours.open("work")
    session = ours.id("work")
    ours.crash("work")
    ours.start("work")
    assert ours.id("work") != session


# ---- Prompts that hold a pane ---------------------------------------------


def no_trust(ours):
    sessions.declare(sessions.row("work"), trust={"open": False}, launch={"verify_s": 20})


def key_unknown(ours):
    claude.prepare_home(ours.real.home)
    path = os.path.join(ours.real.home, ".claude.json")
    claude.write_json(path, {"hasCompletedOnboarding": True})


def warning_not_skipped(ours):
    settings_of(ours, "work", skipDangerousModePermissionPrompt=False)


def settings_broken(ours):
    path = os.path.join(ours.real.home, ".claude", "settings.json")
    claude.write_json(path, {})
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"hooks": ')


def server_to_approve(ours):
    server = {"mcpServers": {"tickets": {"command": "/bin/false", "args": []}}}
    claude.write_json(os.path.join(ours.real.home, "work", ".mcp.json"), server)


HOLDING = {
    "the API-key approval": key_unknown,
    "the Bypass Permissions warning": warning_not_skipped,
    "a settings error": settings_broken,
    "an MCP server approval": server_to_approve,
}


@pytest.mark.parametrize("what", HOLDING)
def test_a_prompt_that_holds_the_pane_is_named(ours, what):
    sessions.declare(sessions.row("work"), launch={"verify_s": 30})
    HOLDING[what](ours)
    done = ours.ps("start")
    assert done.returncode == 1
    assert f"work: BLOCKED: {what}" in done.stderr, done.stderr + ours.real.screen("work")
    assert ours.row("work")["state"] == "BLOCKED"


def test_a_question_to_the_person_is_live(ours):
    ours.open("work", "--permission-mode", "default")
    ours.real.type("work", "please <<sh touch here>>")
    ours.real.see("work", "Do you want to proceed?")
    row = ours.row("work")
    assert (row["state"], "waiting for you" in row["note"]) == ("LIVE", True)


def test_a_conversation_about_the_trust_dialog_is_no_trust_dialog(ours):
    from harness.screens import QUOTED

    ours.open("work", BYPASS)
    with open(os.path.join(ours.real.home, "work", "quote"), "w", encoding="utf-8") as f:
        f.write(QUOTED.format(project="/some/where"))
    ours.real.ask("work", "why <<sh cat quote>>")
    ours.real.see("work", "Enter to confirm")
    assert ours.row("work")["state"] == "LIVE"


def test_trust_answers_the_folder_and_the_warning_in_turn(ours):
    sessions.configure(
        trust={"open": False}, claude={"open_args": [BYPASS]}, launch={"verify_s": 30}
    )
    settings_of(ours, "work", skipDangerousModePermissionPrompt=False)
    folder = os.path.join(ours.real.home, "work")
    os.makedirs(folder)
    assert ours.ps("open", cwd=folder).returncode == 1
    assert ours.row("work")["state"] == "BLOCKED"
    done = ours.ps("trust", "work")
    assert done.returncode == 0, done.stderr
    ours.real.ready("work")
    assert ours.row("work")["state"] == "LIVE"


def test_consent_for_the_home_is_kept_though_claude_does_not_keep_it(ours):
    sessions.configure(trust={"open": False}, launch={"verify_s": 30})
    assert ours.ps("open", cwd=ours.real.home).returncode == 1
    name = next(iter(sessions.panes()))
    done = ours.ps("trust", name)
    assert done.returncode == 0, done.stderr
    ours.real.ready(name)
    ours.real.ask(name, "before")
    ours.crash(name)
    ours.start(name)


# ---- Nothing leaves the pane, nothing is claimed --------------------------


def test_the_left_arrow_stays_in_the_pane(ours):
    ours.open("work")
    ours.real.ask("work", "before")
    ours.real.keys("work", "Left")
    ours.real.ask("work", "after")
    assert not os.path.exists(os.path.join(ours.real.home, ".claude", "jobs"))
    assert ours.row("work")["state"] == "LIVE"


def test_a_conversation_that_left_the_pane_is_noticed(ours):
    settings_of(ours, "work", disableAgentView=False)
    ours.open("work")
    ours.real.ask("work", "before")
    ours.real.press_until("work", "Left", "moved to the background")
    assert wait_until(lambda: ours.real.record("work").get("parkedJobId"), PATIENCE)
    assert "background" in json.dumps(ours.row("work"))


def test_remote_control_is_asked_for_and_never_claimed(ours):
    ours.open("work")
    with open(f"/proc/{ours.real.record('work')['pid']}/cmdline", encoding="utf-8") as f:
        words = f.read().split("\0")
    assert words[words.index("--remote-control") + 1] == "work"
    done = ours.ps("list")
    assert "http" not in done.stdout + done.stderr


def test_a_task_is_there_after_a_crash(ours):
    ours.open("work", BYPASS)
    ours.real.ask("work", "remember <<new buy milk>>")
    ours.crash("work")
    ours.start("work")
    ours.real.ready("work")
    ours.real.panel("work", "◻ buy milk")  # before anything is said
    ours.real.ask("work", "what was it <<tasks>>")
    assert wait_until(lambda: "buy milk" in ours.real.screen("work"), PATIENCE)
