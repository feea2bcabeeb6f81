"""The two units: what systemd makes of them, alone and on a machine that boots."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess

import pytest
from support import ABSENT, ROOT, wait_until

UNITS = os.path.join(ROOT, "units")
SERVICE, TIMER = (f"persistent-sessions.{kind}" for kind in ("service", "timer"))

# Stands for the program: notes how it was called, then does what the test asks.
MODULE = """
import os, subprocess, sys
def main():
    with open(os.path.expanduser("~/runs"), "a") as f:
        f.write(" ".join(sys.argv[1:]) + "\\n")
    sys.stdout.flush()
    return subprocess.call(["sh", os.path.expanduser("~/act")])
exit_with = sys.exit
"""


def unit_text(name):
    with open(os.path.join(UNITS, name), encoding="utf-8") as f:
        return f.read()


def read_unit(name):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(unit_text(name))
    return parser


@pytest.mark.parametrize("name", [SERVICE, TIMER])
def test_systemd_has_nothing_to_say_about_a_unit(name):
    if not shutil.which("systemd-analyze"):
        pytest.skip(f"{ABSENT}systemd-analyze")
    argv = ["systemd-analyze", "verify", "--user", f"{UNITS}/{SERVICE}", f"{UNITS}/{name}"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", [SERVICE, TIMER])
def test_every_directive_that_matters_says_why(name):
    lines = unit_text(name).splitlines()
    bare = [
        line
        for before, line in zip(["", *lines], lines)
        if "=" in line and not line.startswith("#") and not before.startswith("#")
    ]
    assert {line.split("=")[0] for line in bare} <= {"Description", "Documentation"}


def test_the_timer_has_a_starting_point_beside_the_end_of_a_run():
    timer = read_unit(TIMER)["Timer"]
    assert "OnUnitInactiveSec" in timer and {"OnStartupSec", "OnBootSec"} & set(timer)


def test_the_service_ends_by_itself_and_waits_for_nothing_a_user_manager_lacks():
    service = read_unit(SERVICE)
    assert service["Service"]["Type"] == "oneshot" and "RemainAfterExit" not in service["Service"]
    assert not {"After", "Wants", "Requires"} & set(service["Unit"])


# ---- On a machine ---------------------------------------------------------


def put_units(machine, name, act="true"):
    """Install the two units for user `name` with a stand-in for the program."""
    home = machine.out("root", "getent", "passwd", name).split(":")[5]
    for unit in (SERVICE, TIMER):
        machine.write(f"{home}/.config/systemd/user/{unit}", unit_text(unit), name)
    machine.write(f"{home}/.local/lib/persistent-sessions/persistent_sessions.py", MODULE, name)
    machine.write(f"{home}/act", act, name)
    return home


def systemctl(machine, *args, check=True):
    return machine.out("ann", "systemctl", "--user", *args, check=check)


def hurry(machine):
    """Add a much shorter time after a run to the timer's own; the first to come counts."""
    text = "[Timer]\nOnUnitInactiveSec=1s\nAccuracySec=10ms\n"
    folder = f"/home/ann/.config/systemd/user/{TIMER}.d"
    machine.write(f"{folder}/fast.conf", text, "ann")
    systemctl(machine, "daemon-reload")


def runs(machine):
    return machine.out("ann", "sh", "-c", "cat ~/runs || :").split()


def has_next_run(machine):
    keys = ("NextElapseUSecMonotonic", "ActiveState")
    shown = [machine.property("ann", TIMER, key) for key in keys]
    return shown[0] not in ("", "infinity", "0") and shown[1] == "active"


@pytest.mark.box
def test_the_program_is_called_in_a_home_with_odd_characters(machine):
    machine.root("useradd", "-m", "-d", "/home/an n's", "-s", "/bin/bash", "ann")
    machine.root("loginctl", "enable-linger", "ann")
    assert machine.manager_is_up("ann")
    put_units(machine, "ann")
    systemctl(machine, "daemon-reload")
    systemctl(machine, "start", SERVICE)
    assert runs(machine) == ["start"]


@pytest.mark.box
@pytest.mark.parametrize("act", ["true", "false"])
def test_a_fresh_timer_runs_again_and_again_whatever_the_result(machine, act):
    machine.add_user("ann")
    put_units(machine, "ann", act)
    hurry(machine)
    systemctl(machine, "enable", "--now", TIMER)
    assert has_next_run(machine)
    systemctl(machine, "start", SERVICE, check=False)
    assert wait_until(lambda: len(runs(machine)) >= 3, 20)


@pytest.mark.box
def test_after_a_boot_the_service_has_run_and_the_timer_has_a_next_run(machine):
    machine.add_user("ann")
    put_units(machine, "ann", "false")
    systemctl(machine, "daemon-reload")
    systemctl(machine, "enable", SERVICE, TIMER)
    machine.crash()
    machine.boot()
    assert wait_until(lambda: runs(machine) == ["start"], 20)
    assert wait_until(lambda: has_next_run(machine), 5)


@pytest.mark.box
@pytest.mark.parametrize("verb", ["", "stop", "restart"])
def test_what_a_run_left_in_its_own_group_outlives_it(machine, verb):
    machine.add_user("ann")
    put_units(machine, "ann", "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! >~/child")
    systemctl(machine, "daemon-reload")
    systemctl(machine, "start", SERVICE)
    child = machine.out("ann", "cat", "child")
    if verb:
        systemctl(machine, verb, SERVICE)
    assert machine.root("kill", "-0", child, check=False).returncode == 0


@pytest.mark.box
def test_a_run_that_is_stopped_in_the_middle_leaves_what_it_started(machine):
    machine.add_user("ann")
    act = "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! >~/child; exec sleep 300"
    put_units(machine, "ann", act)
    systemctl(machine, "daemon-reload")
    systemctl(machine, "start", "--no-block", SERVICE)
    child = wait_until(lambda: machine.out("ann", "sh", "-c", "cat child || :"), 10)
    systemctl(machine, "stop", SERVICE)
    assert machine.property("ann", SERVICE, "ActiveState") in ("inactive", "failed")
    assert machine.root("kill", "-0", child, check=False).returncode == 0


@pytest.mark.box
def test_ten_runs_in_a_row_are_none_too_many(machine):
    machine.add_user("ann")
    put_units(machine, "ann")
    systemctl(machine, "enable", "--now", TIMER)  # which keeps systemd's count of the runs
    script = f"for i in 0 1 2 3 4 5 6 7 8 9; do systemctl --user start {SERVICE} || exit; done"
    machine.user("ann", "sh", "-c", script)
    assert len(runs(machine)) == 10
