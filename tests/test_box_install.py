"""install.sh on a machine with user managers: packages, units, upgrades, and away again."""

from __future__ import annotations

import pytest
from boxlib import CLONE
from boxpeople import NAME, TIMER, UNIT, Person
from support import ABSENT

pytestmark = [pytest.mark.box, pytest.mark.limit(300)]

# Not a package manager, but the machine has no network to fetch from.
APT = """#!/bin/sh
echo "$*" >>/var/apt.log
case $* in *install*tmux*) mv /usr/bin/tmux.away /usr/bin/tmux ;; esac
"""


@pytest.fixture
def ann(box):
    return Person(box, "ann")


def test_one_command_sets_everything_up(ann):
    done = ann.install()
    assert done.returncode == 0 and "NAME" in done.stdout
    for unit in (UNIT, TIMER):
        assert ann.systemctl("is-enabled", unit).stdout == "enabled\n"
    assert ann.box.property("ann", TIMER, "ActiveState") == "active"
    assert ann.ps("list").returncode == 0


def test_a_second_run_says_that_nothing_changed(ann):
    ann.install()
    again = ann.install()
    assert "install.sh: installed" not in again.stdout
    assert again.stdout.count("install.sh: unchanged") == 6
    assert f"{NAME}: installed" not in again.stderr and "nothing changed" in again.stderr


def test_an_account_where_claude_never_ran_is_set_up_too(ann):
    ann.run("rm", "-r", ".claude")
    assert ann.install().returncode == 0


def test_without_tmux_a_user_is_told_the_command_and_nothing_is_installed(ann):
    ann.box.root("mv", "/usr/bin/tmux", "/usr/bin/tmux.away")
    done = ann.run(f"{CLONE}/install.sh", check=False)
    assert done.returncode == 1
    assert "hint: sudo apt-get install tmux" in done.stderr
    assert not ann.box.exists(f"{ann.home}/.local/bin/{NAME}")


def test_root_installs_a_missing_package_after_saying_so(box):
    box.root("mv", "/usr/bin/tmux", "/usr/bin/tmux.away")
    box.write("/usr/local/sbin/apt-get", APT, mode="755")
    box.root("cp", "-r", f"/home/ann/{CLONE}", "/srv/clone")
    box.root("chown", "-R", "root:", "/srv/clone")
    done = box.login("root", "env", "PATH=/usr/local/sbin:/usr/bin:/bin", "/srv/clone/install.sh")
    assert "install.sh: installing packages: tmux\n" in done.stdout
    assert "install --no-install-recommends tmux" in box.read("/var/apt.log")
    assert box.exists(f"/root/.local/bin/{NAME}")


def test_a_masked_unit_is_named_and_what_hides_it_stays(ann):
    ann.systemctl("mask", TIMER)
    done = ann.run(f"{CLONE}/install.sh", check=False)
    assert done.returncode == 1
    assert f"install.sh: hint: systemctl --user unmask {TIMER}\n" in done.stderr
    ann.systemctl("unmask", TIMER)
    assert ann.install().returncode == 0


@pytest.fixture
def newcomer(machine):
    """Return somebody with a new account: no linger, a manager only while logged in."""
    machine.add_user("ann", linger=False)
    machine.put_repository("ann")
    return Person(machine, "ann")


def test_linger_is_turned_on_where_the_machine_lets_its_users(newcomer):
    if not newcomer.box.exists("/usr/lib/polkit-1/polkitd"):
        pytest.skip(f"{ABSENT}polkitd, without which logind asks for root")
    done = newcomer.box.login("ann", f"{newcomer.home}/{CLONE}/install.sh")
    assert done.returncode == 0 and newcomer.box.exists("/var/lib/systemd/linger/ann")


def test_where_linger_is_refused_the_command_that_brings_it_is_named(newcomer):
    newcomer.box.root("mount", "-m", "-t", "tmpfs", "-o", "ro", "tmpfs", "/var/lib/systemd/linger")
    done = newcomer.box.login("ann", f"{newcomer.home}/{CLONE}/install.sh", check=False)
    assert done.returncode == 1
    assert f"{NAME}: hint: sudo loginctl enable-linger ann" in done.stderr


def test_an_upgrade_touches_no_session(ann):
    ann.install()
    ann.open("alpha")
    before = ann.panes()
    ann.run("sh", "-c", f"echo '# newer' >>{CLONE}/persistent_sessions.py")
    assert f"install.sh: installed {ann.home}/.local/bin/{NAME}" in ann.install().stdout
    assert ann.panes() == before and ann.live() == {"alpha"}


def test_uninstall_leaves_sessions_and_state_and_a_new_installation_finds_them(ann):
    ann.install()
    ann.open("alpha")
    ann.prompt("alpha", "first")
    before, conversation = ann.panes(), ann.conversation("alpha")
    ann.run(f"{CLONE}/install.sh", "--uninstall")
    assert ann.panes() == before
    assert not {UNIT, TIMER} & set(ann.systemctl("list-unit-files", "--no-legend").stdout.split())
    ann.install()
    ann.box.crash()
    ann.box.boot()
    ann.wait_for("alpha")
    assert ann.conversation("alpha") == conversation


def test_after_uninstall_nothing_starts_at_boot(ann):
    ann.install()
    ann.open("alpha")
    ann.run(f"{CLONE}/install.sh", "--uninstall")
    ann.box.reboot()
    assert ann.box.manager_is_up("ann")
    assert ann.systemctl("is-system-running", "--wait", check=False).stdout == "running\n"
    assert ann.panes() == {}
