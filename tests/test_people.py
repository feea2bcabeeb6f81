"""What people reach for: brakes they can see, notices, evidence, choice, completion, mistakes."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
import sessions
import support
from sessions import configure, declare, new_id, pairs, row, state

import persistent_sessions as program

pytestmark = pytest.mark.tmux

NOTE = "#!/bin/sh\nprintf '%s\\n' \"$@\" >>\"$HOME/notes\"\n"


@pytest.fixture
def notes(home):
    """Configure a command that tells a person; return what it was told so far."""
    script = home / "tell"
    script.write_text(NOTE)
    script.chmod(0o755)
    told = home / "notes"
    command = [str(script), "-x", "a b"]

    def read():
        return told.read_text().splitlines() if told.exists() else []

    read.command = {"command": command}
    return read


def rest(name, failures=1, ago=0.0):
    """File a session's failed launches."""
    state().mkdir(parents=True, exist_ok=True)
    text = f"failures={failures}\nlast={time.time() - ago}\n"
    (state() / f"{name}.health").write_text(text)


# ---- Brakes ---------------------------------------------------------------


def test_a_resting_session_is_shown_with_its_next_try_and_survives_a_reboot(ps, claude):
    declare(row("api"))
    rest("api", failures=3, ago=60)
    shown = sessions.listed(ps)["api"]
    assert shown["state"] == "RESTING" and "next try in 19 min" in shown["note"]
    assert "ended 3 times" in shown["note"] and shown["hint"] == "persistent-sessions logs api"
    assert ps("start").returncode == 1 and sessions.panes() == {}


def test_a_session_that_came_up_by_hand_rests_no_longer(ps, claude):
    """The cause was mended; what ends it then (a reboot) is no failure of its own."""
    declare(row("api"))
    rest("api", failures=9, ago=60)
    assert ps("start", "api").returncode == 0
    sessions.prompt("api", "hello")
    support.run_tmux("kill-server")
    assert support.wait_until(lambda: sessions.ended("api"))
    assert ps("status").stdout == "1 down (api)\n"
    done = ps("start")
    assert done.returncode == 0 and "api: LAUNCH: resumed" in done.stderr, done.stderr


def test_start_with_a_name_tries_a_resting_session_at_once(ps, claude):
    declare(row("api"), row("web"))
    for name in ("api", "web"):
        rest(name)
    assert ps("start", "api").returncode == 0
    assert set(sessions.panes()) == {"api"}


def ending(**fields):
    known = program.Ending(1, 0, "", "running", "running", "active", None, False, False)
    return known._replace(**fields)


@pytest.mark.parametrize(
    "how, lasted, failures",
    [
        (ending(), 5.0, 3),
        (ending(), 61.0, 2),  # it worked for a while
        (ending(), 3600.0, 0),
        (ending(signalled="HUP"), 5.0, 2),
        (ending(status=0, killed=9), 5.0, 2),
        (ending(status=0, reason="prompt_input_exit"), 5.0, 0),
    ],
)
def test_only_an_early_end_by_itself_counts_and_an_hour_up_forgets(how, lasted, failures):
    rest("api", failures=2)
    paths = program.Paths.from_env(os.environ)
    program.note_health(paths, "api", how, lasted, 1000.0)
    assert pairs("api", "health")["failures"] == str(failures)


def test_sessions_that_die_together_stop_the_launching(ps, home):
    agent = home / ".local/bin/claude"
    agent.write_text("#!/bin/sh\nexit 1\n")
    agent.chmod(0o755)
    declare(*(row(f"s{n}") for n in range(5)), launch={"parallel": 1})
    done = ps("start")
    assert done.returncode == 1 and "the cause is shared, launching stopped" in done.stderr
    assert [(state() / f"s{n}.exit").exists() for n in range(5)] == [True] * 3 + [False] * 2


# ---- Notices --------------------------------------------------------------


@pytest.mark.parametrize(
    "verdict, before, after",
    [
        ("BLOCKED", "", "BLOCKED"), ("BLOCKED", "BLOCKED", "BLOCKED"), ("LIVE", "BLOCKED", ""),
        ("RESTING", "", "RESTING"), ("RESTING", "BLOCKED", "RESTING"), ("RETIRED", "RESTING", ""),
        ("LAUNCH", "RESTING", "RESTING"), ("UNKNOWN", "BLOCKED", "BLOCKED"), ("HELD", "", ""),
    ],
)  # fmt: skip
def test_only_a_change_is_news_and_only_a_session_that_is_up_is_out_of_it(verdict, before, after):
    assert program.choose_notice(verdict, before) == after


def test_a_person_is_told_once_of_a_resting_session(ps, claude, notes):
    declare(row("api"), row("web"), notify=notes.command)
    ps("start", "web")
    rest("api")
    for _ in range(3):
        ps("start")
    assert notes()[:2] == ["-x", "a b"] and len(notes()) == 3
    assert f"{os.uname().nodename}: api: RESTING: " in notes()[2]
    assert "logs api" in notes()[2]


def test_a_person_is_told_of_a_prompt_once_until_the_session_was_up_again(ps, claude, notes):
    declare(row("api"), trust={"open": False}, notify=notes.command)
    settings = state().parents[2] / ".config" / sessions.NAME / "settings.api.json"
    settings.write_text('{"skipDangerousModePermissionPrompt": false}')
    for _ in range(2):
        ps("start")
    assert len(notes()) == 3 and "BLOCKED: the Bypass Permissions warning" in notes()[2]
    assert ps("status").stdout == "1 blocked (api)\n"
    assert ps("trust", "api").returncode == 0
    assert ps("status").stdout == "1 live\n"
    assert pairs("api", "health")["notified"] == ""


def test_a_command_that_fails_or_hangs_is_a_warning(ps, claude, home, monkeypatch):
    declare(row("api"), notify={"command": ["sh", "-c", "echo no mail >&2; exit 3"]})
    rest("api")
    done = ps("start")
    assert "notify.command: no mail" in done.stderr and "Traceback" not in done.stderr
    monkeypatch.setattr(program, "NOTIFY_TIMEOUT", 0.2)
    slow = "echo $0 >>$HOME/notes; exec sleep 60"
    config = program.choose_config({"notify.command": ("sh", "-c", slow)})
    program.notify(config, ["one", "two", "three"])
    assert (home / "notes").read_text().endswith(": one\n")


# ---- Evidence -------------------------------------------------------------


def test_logs_tell_the_state_the_end_and_the_last_screen(ps, claude):
    declare(row("api"))
    ps("start")
    sessions.prompt("api", "hello")
    os.kill(sessions.agent("api"), 9)
    assert support.wait_until(lambda: (state() / "api.screen").exists())
    said = ps("logs", "api").stdout
    assert said.startswith("api: LAUNCH")
    assert "rc=137" in said and "ANSWER to: hello" in said


def test_logs_without_a_journal_still_tell_the_rest(ps, home):
    declare(row("api"))
    state().mkdir(parents=True)
    (state() / "api.exit").write_text("rc=1\n")
    tools = home / "tools"
    tools.mkdir()
    for name in ("tmux", "git", "python3"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    done = ps("logs", "api", env={"PATH": str(tools)})
    assert done.returncode == 0 and "rc=1" in done.stdout
    assert "journal cannot be read" in done.stderr


# ---- A choice on a terminal -----------------------------------------------


def test_attach_without_a_name_offers_a_numbered_choice(ps, claude, terminal):
    declare(row("api"), row("web"))
    ps("start")
    shell = terminal(*ps.argv, "attach", size=(30, 100))
    shell.expect("1  api\n  2  web\nnumber: ")
    shell.send("2\r")
    shell.expect("❯")
    shown = support.run_tmux("list-clients", "-F", "#{session_name}").stdout
    assert shown == "web\n"


@pytest.mark.parametrize("answer", ["3", "0", "", "x", "²"])
def test_a_number_that_was_not_offered_is_refused(ps, terminal, answer):
    words = "import sys; sys.path.append(sys.argv[1]); import persistent_sessions as m\n"
    words += "m.dispatch = lambda *_: print(m.ask_name(['a', 'b'])) or 0; sys.exit(m.main())"
    shell = terminal(support.sys.executable, "-ISB", "-c", words, support.ROOT)
    shell.expect("number: ")
    shell.send(f"{answer}\r")
    shell.expect("no such number")
    assert shell.wait() == 1


# ---- Completion -----------------------------------------------------------

NAMES = ["api", "gone", "web"]
BASH = """
. ~/.bashrc
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_persistent_sessions
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def installed(ps, home, claude):
    """Install into the private home and file sessions and a launch."""
    declare(row("api"))
    program_ = home / ".local/bin/persistent-sessions"
    program_.symlink_to(support.SESSIONS)
    (home / ".zshrc").touch()
    assert "shell function" not in ps("install").stderr.partition("not done")[2]
    (state() / "registry.tsv").write_text(f"web\t{home}/web\n")
    (state() / "gone.retired").write_text(f"directory={home}/gone\n")
    (state() / "ledger").mkdir(exist_ok=True)
    record = program.Launch("0123456789ab", argv=("true",))
    (state() / "ledger" / f"{record.id}.json").write_text(program.format_launch(record))
    return home


def complete_in_bash(*words):
    argv = ["bash", "--norc", "-uc", BASH, "bash", "persistent-sessions", *words]
    return subprocess.run(argv, capture_output=True, text=True).stdout.split()


def test_bash_completes_commands_names_and_ledger_ids(installed):
    assert complete_in_bash("st") == ["start", "status", "stop"]
    assert complete_in_bash("start", "") == NAMES
    assert complete_in_bash("logs", "0") == ["0123456789ab"]
    assert complete_in_bash("trust", "g") == ["gone"]
    assert complete_in_bash("list", "") == []


@pytest.mark.parametrize("before", [True, False])
def test_zsh_completes_them_too_wherever_compinit_stands(installed, terminal, before):
    if not os.path.exists("/usr/bin/zsh"):
        pytest.skip(f"{support.ABSENT}zsh")
    zshrc = installed / ".zshrc"
    start = "autoload -Uz compinit && compinit -u\n"
    text = start + zshrc.read_text() if before else zshrc.read_text() + start
    zshrc.write_text(f"{text}PS1='ready> '\n")
    shell = terminal("zsh", "-i", env={"SHELL": "/usr/bin/zsh"})
    shell.expect("ready> ")
    shell.send("persistent-sessions trust g\t")
    shell.expect("trust gone")
    shell.send("\x15persistent-sessions doc\t")
    shell.expect("sessions doctor")


def test_every_command_can_be_completed(ps):
    offered = ps("_complete").stdout.split()
    for verb in ("open", "start", "list", "status", "doctor", "logs", "rename", "adopt"):
        assert verb in offered
    assert not [verb for verb in offered if verb.startswith("_")]


# ---- Mistakes -------------------------------------------------------------


@pytest.mark.parametrize(
    "words, status",
    [
        (["start", "none"], 1), (["trust", "none"], 1), (["retire", "none"], 1),
        (["logs", "none"], 1), (["capture", "none"], 1), (["stop", "none"], 1),
        (["attach", "none"], 1), (["rename", "none", "x"], 1), (["adopt", "none"], 1),
        (["list", "--user", "no-such-user"], 2), (["list", "--user=-root"], 2),
        (["doctor", "--user="], 2), (["start", "--user", "a\udc80b"], 2),
        (["list", "--user", "-x"], 2), (["rename", "one"], 2), (["status", "--json"], 2),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line_and_changes_nothing(ps, home, words, status):
    declare(row("api"))
    ps("manifest")
    before = {p: p.stat().st_mtime_ns for p in home.rglob("*") if p.name != "lock"}
    done = ps(*words)
    assert done.returncode == status and "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "hint:" not in line]
    assert len(lines) == 1 and lines[0].startswith("persistent-sessions: "), done.stderr
    assert {p: p.stat().st_mtime_ns for p in home.rglob("*") if p.name != "lock"} == before


@pytest.mark.parametrize("verb", ["list", "start", "status", "doctor"])
@pytest.mark.parametrize("how", ["unreadable", "wrong type"])
def test_a_configuration_that_cannot_be_used_is_said_and_is_status_1(ps, verb, how):
    path = configure(trust={"open": "yes"})
    if how == "unreadable":
        path.unlink()
        path.mkdir()
    done = ps(verb)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and said.count("config.json") >= 1 and "Traceback" not in said


def test_nothing_of_a_caller_is_kept_for_another_user():
    assert program.choose_completions(["list"], ["x"], ["a"], ["b"]) == []
    assert program.choose_adopted_args(
        ["claude", "--resume", new_id(1), "--model", "opus", "--permission-mode=plan", "hello"]
    ) == ("--model", "opus", "--permission-mode=plan")
