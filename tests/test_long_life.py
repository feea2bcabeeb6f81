"""A long life: many boots, many deaths, many ticks; nothing is lost and nothing piles up.

The ordinary run is a short one.  The long one takes hours, in one command:

    PERSISTENT_SESSIONS_TESTS_LONG=1 tests/run tests/test_long_life.py -s

It is 200 boots with ten sessions, 100 sessions ticked 50 times, and 1,000 hosted launches.  The
seed of a life is printed; PERSISTENT_SESSIONS_TESTS_SEED=N lives it again, as far as the machine's
own timing allows.  PERSISTENT_SESSIONS_TESTS_BOOTS=N takes another number of boots.
"""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest
import sessions
import support
from boxpeople import Person
from life import Life

LONG = os.environ.get("PERSISTENT_SESSIONS_TESTS_LONG", "") not in ("", "0")
HOURS = 3600 * 8
BOOTS = int(os.environ.get("PERSISTENT_SESSIONS_TESTS_BOOTS") or (200 if LONG else 4))
SEED = int(
    os.environ.get("PERSISTENT_SESSIONS_TESTS_SEED") or (random.randrange(10**6) if LONG else 1)
)

OPEN_ALL = """for name; do
    mkdir -p "$name"
    (cd "$name" && exec persistent-sessions open) >/dev/null 2>&1 </dev/null &
done
wait"""


@pytest.mark.box
@pytest.mark.tmux
@pytest.mark.limit(HOURS if LONG else 400)
def test_through_reboots_and_power_cuts_each_session_is_what_its_person_left(box):
    print(f"seed {SEED}")
    ann = Person(box, "ann")
    declared, opened = [f"row{at}" for at in range(5)], [f"dir{at}" for at in range(5)]
    life = Life(ann, SEED, [(n, True) for n in declared] + [(n, False) for n in opened])
    ann.write(f"{ann.home}/rows", "".join(f"{n}\t{ann.home}/{n}\n" for n in declared))
    ann.configure(manifest={"file": f"{ann.home}/rows"})
    ann.run("mkdir", "-p", *declared)
    ann.install()
    ann.run("sh", "-c", OPEN_ALL, "sh", *opened)
    ann.ps("start", check=False)
    life.settle("at first")
    first = life.sessions[0]
    life.act(first, life.prompt(first))  # Claude has no folder of conversations before that
    while life.boots < BOOTS:
        for _ in range(life.rng.randrange(1, 6 if LONG else 4)):
            life.act()
        life.reboot()


# ---- Many sessions, many ticks --------------------------------------------

SESSIONS, TICKS = (100, 50) if LONG else (20, 10)
LAUNCHES = 1000 if LONG else 60


def private_kib(pid):
    """Return the memory that is a process's own."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(n) for n in re.findall(r"^Private_\w+: +(\d+) kB$", text, re.M))


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def weigh(private, names):
    """Return what may not grow: memory and files open in supervisors and server, all the rest."""
    supervisors = [int(sessions.pairs(name, "run")["pid"]) for name in names]
    server = int(support.run_tmux("display-message", "-p", "#{pid}").stdout)
    return {
        "processes": len(support.pids_marked("HOME", str(private / "home"))),
        "state": files_below(sessions.state()),
        "runtime": files_below(private / "r") + files_below(private / "t"),
        "open": {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in (*supervisors[1:], server)},
        "kib": sum(private_kib(pid) for pid in supervisors),
        "server": private_kib(server),
    }


@pytest.mark.tmux
@pytest.mark.limit(HOURS if LONG else 240)
def test_ticks_over_many_sessions_leave_nothing_behind(ps, claude, private):
    names = [f"s{at}" for at in range(SESSIONS)]
    sessions.declare(*map(sessions.row, names))
    assert ps("start", timeout=600).returncode == 0
    sessions.prompt(names[0], "hello")

    def tick():
        """One session dies and comes back, the others are looked at."""
        os.kill(sessions.agent(names[0]), signal.SIGKILL)
        assert support.wait_until(lambda: sessions.ended(names[0]))
        done = ps("start", timeout=120)
        assert done.returncode == 0, done.stderr

    for _ in range(3):
        tick()
    before = weigh(private, names)
    for _ in range(TICKS):
        tick()
    same = ("processes", "state", "runtime")
    after = weigh(private, names)
    assert {key: after[key] for key in same} == {key: before[key] for key in same}

    def grown():
        """Return whose open files have become more; a client that just went is still one."""
        now = weigh(private, names)["open"]
        return [pid for pid, count in now.items() if count > before["open"].get(pid, 0)]

    assert support.wait_until(lambda: not grown(), 10), grown()
    print(f"{SESSIONS} sessions, {TICKS} ticks: {before['kib']} to {after['kib']} KiB, "
          f"server {before['server']} to {after['server']} KiB")  # fmt: skip
    assert after["kib"] < before["kib"] * 1.02 + 256
    assert after["server"] < before["server"] * 1.1 + 1024


# ---- Many hosted launches -------------------------------------------------

COUNT = """
ledger=~/.local/state/persistent-sessions/ledger
find $ledger ~/.local/state/persistent-sessions $XDG_RUNTIME_DIR /tmp -user ann |
    grep -v '/ledger/[0-9a-f]*.json$' | sort
ps -u ann -o comm= | grep -vx 'sh\\|ps\\|grep\\|sort\\|find\\|wc\\|sed' | sort
systemctl --user list-units --all --plain --no-legend | sed 's/ .*//' | sort
grep -c ' 00010000 ' /proc/net/unix
"""
HOST = """for at in $(seq "$1"); do
    persistent-sessions host --name "many$at" -- sh -c 'exit 3' </dev/null
    [ $? = 3 ] || echo "$at: not 3"
done"""
AGE = """cd ~/.local/state/persistent-sessions/ledger
touch -d '15 days ago' $(ls | grep json | head -n "$1") && touch -d '2 days ago' swept"""


@pytest.mark.box
@pytest.mark.tmux
@pytest.mark.limit(HOURS if LONG else 240)
def test_many_hosted_launches_leave_only_their_records_and_those_for_a_time(box):
    ann = Person(box, "ann")
    ann.install()

    def count():
        return ann.run("sh", "-c", COUNT).stdout.splitlines()

    def records():
        return int(ann.out("sh", "-c", "ls .local/state/*/ledger/*.json | wc -l"))

    ann.run("sh", "-c", HOST, "sh", "2")
    before = count()
    done = ann.run("sh", "-c", HOST, "sh", str(LAUNCHES), timeout=3600)
    assert (done.stdout, done.stderr) == ("", "")
    assert support.wait_until(lambda: count() == before, 20), (before, count())
    assert records() == LAUNCHES + 2
    ann.run("sh", "-c", AGE, "sh", str(LAUNCHES - 10))
    ann.run("sh", "-c", HOST, "sh", "1")
    assert support.wait_until(lambda: count() == before, 20), (before, count())
    assert records() == 13
