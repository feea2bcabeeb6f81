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
from boxlib import CLONE
from boxpeople import Person
from hosted import Pane
from sessions import declare, head_id, row, state
from support import ABSENT, ADOPT, SESSIONS, TESTS, wait_until

pytestmark = pytest.mark.tmux

DENY = os.path.join(TESTS, "fakes", "deny_call.py")
OTHER_TMUX = [p for p in os.environ.get("PERSISTENT_SESSIONS_TESTS_TMUX", "").split(":") if p]


@pytest.fixture
def door(home):
    """Let panes and hooks import the program with its compiled copy, as where it is installed."""
    folder = home / ".local/lib" / sessions.NAME
    folder.mkdir(parents=True)
    (folder / "persistent_sessions.py").symlink_to(SESSIONS)


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


def end(ps, name):
    """End a session at its prompt; a busy machine may hold up the hook that says who did it."""
    for _ in range(3):
        say(name, "/exit")
        assert wait_until(lambda: sessions.ended(name), 20)
        if (state() / f"{name}.retired").exists():
            return
        ps("start", name)
    raise AssertionError(f"{name} did not stay ended")


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
    end(ps, name)
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
def test_a_configuration_of_tmux_changes_nothing(ps, door, claude, home, text):
    sessions.conf(text + "\n")
    do_the_job(ps, home)


def test_a_hook_that_renames_every_session_loses_none(ps, door, claude, home):
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


# ---- Locales --------------------------------------------------------------


@pytest.mark.parametrize("locale", ["C", "POSIX", "", "de_DE.ISO-8859-1"])
def test_names_of_any_script_are_kept_whatever_the_locale_knows(
    ps, door, claude, home, tmp_path, locale
):
    os.environ.pop("LANG")
    if locale.endswith("8859-1"):
        argv = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / locale)]
        if not shutil.which("localedef") or subprocess.run(argv, capture_output=True).returncode:
            pytest.skip(f"{ABSENT}the sources of locales")
        os.environ["LOCPATH"] = str(tmp_path)
        stand_in = claude.read_text()  # Claude itself knows no locales
        claude.write_text(stand_in.replace("python3 -IS\n", "python3 -ISXutf8\n", 1))
    if locale:
        os.environ["LC_ALL"] = locale
    do_the_job(ps, home, "büro-日本")
    assert "büro-日本" in ps("list").stdout


# ---- Interpreters ---------------------------------------------------------

MINORS = range(9, 15)
SEARCH = os.environ.get("PATH", os.defpath)  # the caller's, before any test has its own
COMPILE = """import pathlib, sys
for path in map(pathlib.Path, sys.argv[1:]):
    compile(path.read_bytes(), path, "exec")
"""
PYENV = os.path.expanduser("~/.pyenv/versions")


def interpreter(minor):
    """Return a Python 3 of this minor version that really is one, or skip."""
    found = [f"{folder}/python3.{minor}" for folder in SEARCH.split(":")]
    found += sorted(glob.glob(f"{PYENV}/3.{minor}.*/bin/python3.{minor}"))
    code = f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
    for path in filter(os.path.exists, found):
        if subprocess.run([path, "-IS", "-c", code], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"{ABSENT}a Python 3.{minor}")


@pytest.mark.parametrize("minor", MINORS)
def test_the_job_is_done_by_every_python(ps, claude, home, tmp_path, monkeypatch, minor):
    python = interpreter(minor)
    argv = [python, "-IS", "-W", "error", "-c", COMPILE, SESSIONS, ADOPT]
    assert subprocess.run(argv, capture_output=True).stderr == b""
    monkeypatch.setattr(sys, "executable", python)
    ps.argv[0] = python
    do_the_job(ps, home)
    assert ps("host", "--", "sh", "-c", "exit 3").returncode == 3
    pane = Pane("sh", "-c", "exit 5")
    pane.start()
    pane.meet()
    assert pane.status() == 5
    pane.end()
    tasks = adopt_support.Box(tmp_path)
    tasks.session(adopt_support.OLD)
    assert "subject 2" in tasks.hook().context and tasks.has()


def without_python(home, *argv):
    """Run a command where /usr/bin/python3 is not a program."""
    if os.getuid() != 0:
        pytest.skip(f"{ABSENT}root, to hide /usr/bin/python3")
    (home / "no-program").touch(mode=0o644)
    hide = f'mount --bind {home}/no-program /usr/bin/python3; exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", hide, "sh", *argv]
    return subprocess.run(argv, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL)


def test_without_usr_bin_python3_the_installation_says_so_and_uses_the_one_it_has(claude, home):
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip(f"{ABSENT}/usr/bin/python3, to hide it")
    refused = without_python(home, os.path.join(support.ROOT, "install.sh"))
    assert refused.returncode == 1
    assert "nothing was installed: /usr/bin/python3 is missing" in refused.stderr
    own = home / "bin/python3"
    own.parent.mkdir()
    shutil.copy("/usr/bin/python3", own)
    done = without_python(home, str(own), "-IS", SESSIONS, "install")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "there is no /usr/bin/python3" in done.stderr
    unit = (home / ".config/systemd/user/persistent-sessions.service").read_text()
    assert f"ExecStart={own} -IS -c" in unit and "/usr/bin/python3" not in unit
    hooks = json.loads((home / ".claude/settings.json").read_text())["hooks"]
    assert str(own) in json.dumps(hooks)


# ---- File systems ---------------------------------------------------------


def denied(ps, call, code, *words):
    """Run the program where a system call fails."""
    argv = [sys.executable, DENY, call, code, *ps.argv, *words]
    return subprocess.run(
        argv, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL, timeout=60
    )


@pytest.mark.parametrize("code", ["ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def test_where_nothing_can_be_locked_nothing_is_launched_and_that_is_said(ps, claude, code):
    declare(row("api"))
    done = denied(ps, "flock", code, "start")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no lock can be taken here" in done.stderr and sessions.panes() == {}
    assert denied(ps, "flock", code, "list").stdout.startswith("NAME")


NO_FLOCK = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int flock(int fd, int how)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 &&
        strncmp(path, getenv("HOME"), strlen(getenv("HOME"))) == 0) {
        errno = ENOLCK;
        return -1;
    }
    return syscall(SYS_flock, fd, how);
}
"""


def test_where_no_route_can_be_waited_for_it_is_not_waited_for():
    if os.getuid() != 0:
        pytest.skip(f"{ABSENT}root, for a network without a route")
    code = "import sys; sys.path.append(sys.argv[1]); import persistent_sessions as m\n"
    code += "print(m.wait_for_route(20))"
    python = ["/usr/bin/python3", "-IS", "-c", code, support.ROOT]
    argv = ["unshare", "-n", sys.executable, DENY, "bind", "EAFNOSUPPORT", *python]
    done = subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=15)
    assert done.stdout.startswith("no default route, and no way to wait for one"), done.stderr


def test_processes_that_may_not_be_seen_are_somebody_elses(ps, home, tmp_path):
    """With hidepid=1 the numbers of other users' processes are all that is seen of them."""
    if os.getuid() != 0:
        pytest.skip(f"{ABSENT}root, to hide processes")
    declare(row("api"), row("held"))
    for number, name in enumerate(("api", "held"), 1):
        sessions.file_id(name, sessions.new_id(number))
        sessions.transcript(sessions.new_id(number))
    old = sessions.record(os.getpid(), sessions.new_id(1), cwd=str(home / "api"))
    shutil.copy(SESSIONS, home / "program.py")
    for folder, _, names in os.walk(home.parent):
        for name in (".", *names):
            os.chown(os.path.join(folder, name), 65534, 65534, follow_symlinks=False)
    hide = "mount -t proc -o hidepid=1 proc /proc && exec setpriv --reuid=65534 --regid=65534"
    words = f"{hide} --clear-groups /usr/bin/python3 -IS {home}/program.py start --dry-run"

    def planned():
        argv = ["unshare", "-m", "sh", "-c", words]
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=60)
        return done.stdout, done.stderr

    said, wrong = planned()
    assert f"api: LAUNCH: {sessions.new_id(1)}" in said and not wrong, (said, wrong)
    os.chown(old, 0, 0)  # a claude that root runs in this home: it may be that one
    said, wrong = planned()
    assert "api: HELD" in said and "held: LAUNCH" in said, (said, wrong)


def test_in_a_home_without_locks_the_runtime_folder_holds_the_lock(ps, door, claude, home):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip(f"{ABSENT}a C compiler")
    (home / "flock.c").write_text(NO_FLOCK)
    library = str(home / "flock.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, home / "flock.c"], check=True)
    os.environ["LD_PRELOAD"] = library
    do_the_job(ps, home)
    assert Path(os.environ["XDG_RUNTIME_DIR"], f"{sessions.NAME}.lock").exists()


KNOWN = '{"first": 1, "projects": {"/other": {"a": 1.50}}}'


@pytest.mark.parametrize("call, before, code", [
    ("link", "", "EPERM"), ("link", "", "EOPNOTSUPP"), ("renameat2", KNOWN, "EINVAL"),
    ("renameat2", KNOWN, "ENOSYS"), ("renameat2", KNOWN, "EPERM"),
])  # fmt: skip
def test_a_folder_is_trusted_where_the_file_system_can_do_little(
    ps, door, claude, home, call, before, code
):
    declare(row("api"))
    if before:
        (home / ".claude.json").write_text(before)
    done = denied(ps, call, code, "start")
    assert done.returncode == 0 and "not trusted" not in done.stderr, done.stderr
    text = (home / ".claude.json").read_text()
    assert json.loads(text)["projects"][str(home / "api")] == {"hasTrustDialogAccepted": True}
    assert not before or ('"first": 1' in text and '{"a": 1.50}' in text)
    left = [p.name for p in home.iterdir() if re.search("tmp|lock", p.name)]
    assert left == []


# ---- Other versions of tmux -----------------------------------------------


@pytest.mark.parametrize("path", OTHER_TMUX or [""])
def test_the_job_is_done_with_every_tmux(ps, door, claude, home, path):
    if not path:
        pytest.skip(f"{ABSENT}another tmux (PERSISTENT_SESSIONS_TESTS_TMUX names none)")
    (home / ".local/bin/tmux").symlink_to(path)
    assert shutil.which("tmux") == str(home / ".local/bin/tmux")
    sessions.conf("set -s exit-empty off\n")
    do_the_job(ps, home)


# ---- Accounts -------------------------------------------------------------

TALK = """cd work && persistent-sessions open
tmux send-keys -t =work: hello Enter
until tmux capture-pane -p -t =work: | grep -q 'ANSWER to: hello'; do sleep 0.1; done"""
COME_BACK = """for at in $(seq 100); do
    persistent-sessions list | grep -q '^work  *LIVE' && break
    sleep 0.2
done
tmux send-keys -t =work: again Enter
for at in $(seq 50); do
    tmux capture-pane -p -t =work: | grep 'knows: hello' && break
    sleep 0.1
done"""


@pytest.mark.box
@pytest.mark.limit(180)
def test_without_linger_a_session_goes_with_the_logout_and_comes_with_the_login(machine):
    machine.add_user("ann", linger=False)
    machine.put_repository("ann")
    ann = Person(machine, "ann")
    machine.root("mount", "-m", "-t", "tmpfs", "-o", "ro", "tmpfs", "/var/lib/systemd/linger")
    said = machine.login("ann", f"{ann.home}/{CLONE}/install.sh", check=False)
    assert "hint: sudo loginctl enable-linger ann" in said.stderr
    ann.run("mkdir", "work")
    path = f"PATH={ann.home}/.local/bin:/usr/bin:/bin"
    machine.login("ann", "env", path, "sh", "-ec", TALK)
    uid = ann.out("id", "-u")
    machine.root("systemctl", "stop", f"user@{uid}.service")  # as logind does after the logout
    assert ann.panes() == {}
    shown = machine.login("ann", "env", path, "sh", "-c", COME_BACK, check=False)
    assert "knows: hello" in shown.stdout, machine.journal("-n", "40")
