"""The promise: sessions come back on a machine that lost power, each in its conversation."""

from __future__ import annotations

import pytest
from boxpeople import UNIT, Person
from support import wait_until

pytestmark = [pytest.mark.box, pytest.mark.limit(300)]


@pytest.fixture
def ann(box):
    """Return ann with everything installed."""
    person = Person(box, "ann")
    person.install()
    return person


@pytest.fixture
def three(ann):
    """Return ann with two sessions she opened and one that is declared, each with a memory."""
    ann.open("alpha")
    ann.open("beta")
    ann.run("mkdir", "-p", "gamma")
    ann.declare(["gamma", f"{ann.home}/gamma"])
    ann.ps("start")
    for name in ("alpha", "beta", "gamma"):
        ann.prompt(name, f"first-{name}")
    ann.type_line("beta", "/clear")
    ann.prompt("beta", "second-beta")
    return ann


def test_after_a_power_cut_three_sessions_are_back_in_their_conversations(three):
    before = {name: three.conversation(name) for name in ("alpha", "beta", "gamma")}
    three.box.crash()
    three.box.boot()
    three.wait_for(*before)
    assert three.box.out("root", "loginctl", "list-sessions", "--no-legend") == ""
    assert {name: three.conversation(name) for name in before} == before
    answer = three.prompt("alpha", "again")
    assert answer.endswith("knows: first-alpha")
    assert three.prompt("beta", "again").endswith("knows: second-beta")


def test_what_was_ended_on_purpose_stays_ended_over_a_reboot(three):
    three.type_line("alpha", "/exit")
    three.wait_for("beta", "gamma")
    three.box.reboot()
    three.wait_for("beta", "gamma")
    assert "alpha" not in three.panes() and three.table()["alpha"] == "RETIRED"


def test_a_shutdown_in_order_ends_no_session_on_purpose(three):
    for _ in range(2):
        three.box.reboot()
        three.wait_for("alpha", "beta", "gamma")


def test_the_next_tick_brings_back_what_a_killed_server_took(three):
    before = {name: three.conversation(name) for name in ("alpha", "beta", "gamma")}
    three.hurry()
    three.tmux("kill-server")
    three.wait_for(*before)
    assert {name: three.conversation(name) for name in before} == before


@pytest.mark.parametrize("verb", ["stop", "restart", "start"])
def test_what_is_done_to_the_unit_touches_no_pane(three, verb):
    before = three.panes()
    assert len(before) == 3
    three.systemctl(verb, UNIT)
    assert three.panes() == before
    three.wait_for(*before)


def test_sessions_that_the_unit_started_outlive_it(three):
    three.box.reboot()
    three.wait_for("alpha", "beta", "gamma")
    before = three.panes()
    three.systemctl("stop", UNIT)
    three.systemctl("restart", UNIT)
    assert three.panes() == before
    assert three.box.property("ann", UNIT, "Result") == "success"


def test_a_row_merged_while_the_machine_was_off_is_there_after_boot(three):
    three.run("mkdir", "-p", "delta")
    three.declare(["gamma", f"{three.home}/gamma"], ["delta", f"{three.home}/delta"])
    three.box.crash()
    three.box.boot()
    three.wait_for("alpha", "beta", "gamma", "delta")


def test_after_a_logout_with_linger_sessions_stay(ann):
    ann.open("alpha")
    before = ann.panes()
    ann.box.login("ann", "true")
    assert wait_until(lambda: not ann.box.out("root", "loginctl", "list-sessions", "--no-legend"))
    assert ann.panes() == before


def test_everything_runs_at_boot_and_again_after_it(ann):
    ann.box.crash()
    ann.box.boot()
    assert ann.box.manager_is_up("ann")
    shown = wait_until(lambda: ann.systemctl("list-timers", "--no-legend").stdout, 20)
    assert UNIT in shown
    assert wait_until(lambda: ann.box.property("ann", UNIT, "ActiveState") == "inactive", 20)
    assert ann.box.property("ann", UNIT, "Result") == "success"
