"""The `claude` function: a bare claude on a terminal opens a session, everything else is real."""

from __future__ import annotations

import os
import shutil

import pytest
import sessions
import support

import persistent_sessions as program

pytestmark = pytest.mark.tmux

SHELLS = ["bash", "zsh"]
RC = {"bash": ".bashrc", "zsh": ".zshrc"}


@pytest.fixture(params=SHELLS)
def shell(request, ps, claude, home):
    """Install into a home whose rc file is the person's; return (shell, rc file)."""
    if not shutil.which(request.param):
        pytest.skip(f"{support.ABSENT}{request.param}")
    sessions.configure()
    (home / "work").mkdir()
    (home / ".zshrc").touch()
    rc = home / RC[request.param]
    return request.param, rc


def install(ps, text, rc):
    rc.write_text(text)
    ps("install")  # exits 1 here: there is no user manager


def type_claude(terminal, shell, home, command="claude", **env):
    """Run a command line in an interactive shell in ~/work."""
    extra = {"ZDOTDIR": str(home)} if shell == "zsh" else {}
    return terminal(shell, "-ic", command, cwd=home / "work", env={**extra, **env}, size=(40, 120))


RC_TEXTS = {
    "empty": "",
    "no newline at the end": "export A=1",
    "strict": "set -u\nunset TMUX\n",
    "an alias": "alias claude='echo aliased'\n",
    "a function": "claude() { echo mine; }\n",
}


@pytest.mark.parametrize("text", RC_TEXTS)
def test_a_bare_claude_on_a_terminal_opens_a_session(ps, shell, home, terminal, text):
    name, rc = shell
    install(ps, RC_TEXTS[text], rc)
    screen = type_claude(terminal, name, home)
    assert support.wait_until(lambda: "work" in sessions.panes()), screen.text()
    screen.expect("❯")
    assert "unbound" not in screen.text() and "aliased" not in screen.text()
    if "A=1" in RC_TEXTS[text]:
        assert type_claude(terminal, name, home, "echo is $A").expect("is 1") is not None


@pytest.mark.parametrize("how", ["an argument", "a pipe", "inside tmux"])
def test_everything_else_is_the_real_claude(ps, shell, home, terminal, how):
    name, rc = shell
    log = sessions.argv_log()
    install(ps, "", rc)
    command = {"an argument": "claude -p hello", "a pipe": "echo hello | claude -p"}
    env = {"TMUX": "/nowhere,1,0"} if how == "inside tmux" else {}
    screen = type_claude(terminal, name, home, command.get(how, "claude"), **env)
    assert support.wait_until(lambda: screen.pump() is None or sessions.launches(log))
    assert sessions.panes() == {}
    assert sessions.launches(log)[0]["env"]["AGENT_LEDGER_HUMAN"] == "1"


def test_without_the_program_the_real_claude_runs(ps, shell, home, terminal):
    name, rc = shell
    log = sessions.argv_log()
    install(ps, "", rc)
    (home / ".local/bin/persistent-sessions").unlink()
    screen = type_claude(terminal, name, home)
    assert support.wait_until(lambda: screen.pump() is None or sessions.launches(log))
    assert sessions.panes() == {}


def test_installing_twice_changes_an_rc_file_once(ps, shell, home):
    _, rc = shell
    install(ps, "export A=1\n", rc)
    once = rc.read_text()
    ps("install")
    assert rc.read_text() == once and once.count(program.BEGIN) == 1
    ps("uninstall")
    assert rc.read_text() == "export A=1\n"


def test_a_linked_rc_file_stays_a_link_and_keeps_its_mode(ps, claude, home):
    (home / "dots").mkdir()
    (home / "dots/bashrc").write_text("export A=1\n")
    (home / "dots/bashrc").chmod(0o600)
    (home / ".bashrc").symlink_to("dots/bashrc")
    ps("install")
    assert (home / ".bashrc").is_symlink()
    assert program.BEGIN in (home / "dots/bashrc").read_text()
    assert (home / "dots/bashrc").stat().st_mode & 0o777 == 0o600


def test_an_rc_file_with_half_a_block_is_left_alone_and_named(ps, claude, home):
    (home / ".bashrc").write_text(f"{program.BEGIN}\nexport A=1\n")
    done = ps("install")
    assert done.returncode == 1 and ".bashrc" in done.stderr and "do not pair" in done.stderr
    assert (home / ".bashrc").read_text() == f"{program.BEGIN}\nexport A=1\n"


def test_install_moves_ids_of_no_session_to_the_attic(ps, claude, home):
    sessions.configure()
    sessions.file_id("old", sessions.new_id(1))
    ps("install")
    assert not (sessions.state() / "old.id").exists()
    (kept,) = (sessions.state() / "attic").iterdir()
    assert kept.read_text() == sessions.new_id(1) + "\n"


def test_install_trusts_the_folders_of_the_restore_set(ps, claude, home):
    sessions.declare(sessions.row("api"))
    done = ps("install")
    assert f'"{home}/api"' in (home / ".claude.json").read_text()
    assert "no step" not in done.stderr


def test_without_a_user_manager_install_writes_its_files_and_names_the_step(ps, claude, home):
    env = {"XDG_RUNTIME_DIR": "", "DBUS_SESSION_BUS_ADDRESS": ""}
    done = ps("install", env=env)
    assert done.returncode == 1 and "install: units: systemctl" in done.stderr
    assert (home / ".config/systemd/user/persistent-sessions.timer").exists()
    dropin = home / ".config/systemd/user/persistent-sessions.service.d/environment.conf"
    assert f'PS_CLAUDE={home}/.local/bin/claude"' in dropin.read_text()
    assert f"PATH={os.environ['PATH']}" in dropin.read_text()
