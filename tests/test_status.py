"""`status`: one line and one exit status for a status bar, from files alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sessions
import support
from sessions import configure, declare, new_id, row, state

import persistent_sessions as program

HEAVY = {"argparse", "json", "typing", "re", "subprocess", "signal", "enum", "pathlib"}


def supervised(name, pid=None, **fields):
    """File a .run that names a live process."""
    state().mkdir(parents=True, exist_ok=True)
    pid = pid or os.getpid()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = {"boot": boot, "pid": pid, "start": support.start_time(pid), **fields}
    (state() / f"{name}.run").write_text("".join(f"{k}={v}\n" for k, v in known.items()))


def opened(*names, **fields):
    """Write a registry with these sessions."""
    state().mkdir(parents=True, exist_ok=True)
    rows = [f"{name}\t{os.environ['HOME']}/{name}\t-\t{fields.get(name, '-')}\n" for name in names]
    (state() / "registry.tsv").write_text("".join(rows))


def health(name, **fields):
    (state() / f"{name}.health").write_text("".join(f"{k}={v}\n" for k, v in fields.items()))


def status(ps):
    done = ps("status")
    assert done.stderr == "" or "config.json" in done.stderr
    return done.returncode, done.stdout


def test_without_any_session_all_is_well(ps):
    assert status(ps) == (0, "no sessions\n")
    assert not state().exists()


def test_a_state_folder_that_cannot_be_listed_is_one_clear_line(ps):
    state().parent.mkdir(parents=True)
    state().write_text("not a folder")
    done = ps("status")
    assert done.returncode == 1 and "Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_live_sessions_are_counted_and_all_is_well(ps):
    opened("api", "web")
    supervised("api")
    supervised("web")
    assert status(ps) == (0, "2 live\n")


def test_a_session_that_is_not_there_is_named(ps):
    opened("api", "web")
    supervised("web")
    assert status(ps) == (1, "1 live, 1 down (api)\n")


def test_a_supervisor_of_another_boot_or_start_is_not_live(ps):
    opened("api", "web")
    supervised("api", boot="another")
    supervised("web", start="1")
    assert status(ps) == (1, "2 down (api, web)\n")


def test_a_prompt_that_the_last_tick_met_is_told(ps):
    opened("api")
    supervised("api")
    health("api", notified="BLOCKED")
    assert status(ps) == (1, "1 blocked (api)\n")


def test_a_resting_session_is_told_until_it_is_tried_again(ps):
    opened("api")
    health("api", failures=2, last=time.time())
    assert status(ps) == (1, "1 resting (api)\n")
    health("api", failures=2, last=time.time() - 3000)
    assert status(ps) == (1, "1 down (api)\n")


def test_an_ended_session_is_not_missed(ps):
    opened("api")
    (state() / "api.retired").write_text("how=retired\n")
    assert status(ps) == (0, "no sessions\n")


def test_a_claude_without_a_supervisor_of_ours_counts_as_live(ps):
    opened("api")
    sessions.record(os.getpid(), new_id(1), tmux="api:@1.%1")
    assert status(ps) == (0, "1 live\n")


def test_a_session_renamed_by_hand_counts_once(ps):
    opened("api", "new", new="api")
    supervised("api")
    assert status(ps) == (0, "2 live\n")  # both rows lead to the one that lives
    supervised("api", boot="another")
    assert status(ps) == (1, "1 down (new)\n")


def test_declared_sessions_are_known_from_the_last_good_copy(ps):
    declare(row("api"))
    assert status(ps) == (0, "no sessions\n")
    ps("manifest")
    assert status(ps) == (1, "1 down (api)\n")


def test_a_broken_configuration_is_told(ps):
    opened("api")
    supervised("api")
    configure().write_text('{"trust": {"open": 3}}')
    assert status(ps) == (1, "1 live, config.json is broken\n")


@pytest.mark.parametrize(
    "states, line",
    [
        ({"live": [], "down": []}, "no sessions"),
        ({"live": ["a"], "down": []}, "1 live"),
        ({"live": ["a", "b"], "blocked": ["c"], "down": ["d", "e"]},
         "2 live, 1 blocked (c), 2 down (d, e)"),
        ({"down": ["a", "b", "c"]}, "3 down (a, b, c)"),
        ({"down": ["a", "b", "c", "d"]}, "4 down (a, b, c, ...)"),
    ],
)  # fmt: skip
def test_the_line_says_how_many_and_names_a_few(states, line):
    assert program.format_status(states) == line


def test_status_imports_nothing_heavy_and_starts_no_program(ps):
    opened("api")
    supervised("api")
    code = (
        f"import sys; sys.path.append({support.ROOT!r}); import persistent_sessions as m\n"
        "def stop(*a): raise SystemExit('a program was started')\n"
        "import os; os.posix_spawnp = os.fork = stop\n"
        "s = m.main(['status']); print(*sorted(sys.modules)); sys.exit(s)"
    )
    argv = [sys.executable, "-IS", "-B", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("1 live\n"), done.stderr
    assert not HEAVY & set(done.stdout.split())
