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

import pytest
from boxpeople import Person
from life import Life

LONG = os.environ.get("PERSISTENT_SESSIONS_TESTS_LONG", "") not in ("", "0")
HOURS = 3600 * 8
BOOTS = int(os.environ.get("PERSISTENT_SESSIONS_TESTS_BOOTS") or (200 if LONG else 4))
SEED = int(os.environ.get("PERSISTENT_SESSIONS_TESTS_SEED") or random.randrange(1_000_000))

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
    while life.boots < BOOTS:
        for _ in range(life.rng.randrange(1, 6 if LONG else 4)):
            life.act()
        life.reboot()
