"""The throw-away machine itself: what the other box tests take for granted."""

from __future__ import annotations

import os

import boxlib
import pytest
import support

pytestmark = [pytest.mark.box, pytest.mark.limit(180)]


def test_a_box_boots_to_a_running_system(machine):
    assert machine.out("root", "systemctl", "is-system-running") == "running"
    assert machine.out("root", "cat", "/proc/1/comm") == "systemd"


def test_a_box_shows_nobody_of_the_machine_below(machine):
    assert machine.out("root", "find", "/home", "/root", "-type", "f") == ""
    assert machine.out("root", "sh", "-c", "ls /var/lib/systemd/linger 2>&- || :") == ""


def test_a_box_cannot_change_the_kernel_below(machine):
    refused = machine.root("sh", "-c", "echo 1 >/proc/sys/vm/drop_caches", check=False)
    assert refused.returncode != 0 and "Read-only" in refused.stderr


def test_commands_pass_arguments_input_and_status_unchanged(machine):
    args = ["a b", "$HOME", "it's", ";", "", "ü"]
    script = 'cat; printf "%s|" "$@"; exit 7'
    done = machine.root("sh", "-c", script, "sh", *args, input="in-", check=False)
    assert (done.returncode, done.stdout) == (7, "in-" + "|".join(args) + "|")


def test_the_disk_survives_a_power_cut_and_the_rest_does_not(machine):
    before = machine.boot_id()
    machine.write("/var/kept", "kept")
    machine.write("/run/lost", "lost")
    machine.crash()
    machine.boot()
    assert machine.read("/var/kept") == "kept" and not machine.exists("/run/lost")
    assert machine.boot_id() != before


def test_a_shutdown_in_order_stops_services(machine):
    unit = "[Service]\nExecStart=sleep infinity\nExecStopPost=touch /var/stopped\n"
    machine.write("/etc/systemd/system/one.service", unit)
    machine.root("systemctl", "start", "one.service")
    machine.reboot()
    assert machine.exists("/var/stopped")


def test_a_power_cut_stops_nothing_in_order(machine):
    unit = "[Service]\nExecStart=sleep infinity\nExecStopPost=touch /var/stopped\n"
    machine.write("/etc/systemd/system/one.service", unit)
    machine.root("systemctl", "start", "one.service")
    machine.crash()
    machine.boot()
    assert not machine.exists("/var/stopped")


def test_a_power_cut_leaves_no_process_behind(machine):
    marker = f"BOX_MARK={os.getpid()}"
    machine.root("systemd-run", f"--setenv={marker}", "sleep", "12345")
    pids = boxlib.wait_until(lambda: pids_with(marker), 5)
    assert pids
    machine.crash()
    assert not pids_with(marker)


def pids_with(marker):
    name, _, value = marker.partition("=")
    return support.pids_marked(name, value)


def test_a_lingering_user_has_a_manager_after_boot_without_a_login(machine):
    machine.add_user("ann")
    machine.reboot()
    assert machine.manager_is_up("ann")
    assert "ann" not in machine.out("root", "loginctl", "list-sessions")


def test_without_linger_the_manager_is_there_only_while_logged_in(machine):
    machine.add_user("ann", linger=False)
    ask = ("systemctl", "--user", "is-system-running")
    assert not machine.manager_is_up("ann", 0.1)
    assert machine.login("ann", *ask).stdout.strip() == "running"


def test_a_user_command_has_only_the_environment_of_that_user(machine):
    machine.add_user("ann")
    words = machine.out("ann", "env", env={"MORE": "x y"}).splitlines()
    assert {"HOME=/home/ann", "USER=ann", "MORE=x y"} <= set(words)
    assert not [w for w in words if w.startswith(("PYTEST", "TMUX", "SUDO"))]


def test_a_terminal_in_a_box_is_one_that_tmux_accepts(machine):
    machine.add_user("ann")
    screen = machine.terminal("ann", "tmux", "new-session", "tty; read x", size=(30, 90))
    try:
        screen.expect("/dev/pts/")
        assert machine.out("ann", "tmux", "list-sessions", "-F", "#S") == "0"
        screen.send("\r")
        assert screen.wait() == 0
    finally:
        screen.end()


def test_two_boxes_run_side_by_side(machine):
    other = boxlib.Box(machine.folder + ".other")
    try:
        other.boot()
        other.off()
        assert machine.out("root", "systemctl", "is-system-running") == "running"
    finally:
        other.remove()


def test_a_box_does_not_boot_twice(machine):
    again = machine.box("boot", machine.folder, check=False)
    assert again.returncode == 1 and again.stderr == f"box: {machine.folder} runs already\n"


def test_a_clone_in_a_box_belongs_to_its_user(box):
    owners = box.out("ann", "stat", "-c", "%U %a", f"{boxlib.CLONE}/tests/box", boxlib.CLONE)
    assert owners.splitlines() == ["ann 755", "ann 755"]
