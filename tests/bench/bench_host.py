#!/usr/bin/python3
"""Measure host: what a hosted launch costs beside its parts, as ratios within one run.

    tests/bench/bench_host.py [--runs 31]        needs root: it boots a machine for itself

U is `/usr/bin/python3 -IS -c pass`.  The program runs as installed, through its import door.
Variants run in turn (A B C A B C ...), so that a drifting machine drifts for all; medians are
shown.  The status is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = "/usr/bin/python3"
LIB = ".local/lib/persistent-sessions"
LAST_ACT = "import os,time;os.write(1,b'%d'%time.monotonic_ns());os._exit(0)"
SCOPE = ["systemd-run", "--user", "--scope", "--quiet", "--collect"]
MINUTE = 60.0


# ---- Inside the box -------------------------------------------------------


def clock(argv: list[str], status: int = 0) -> float:
    """Return how long a whole process takes, in ms."""
    began = time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    took = (time.perf_counter() - began) * 1000
    assert done.returncode == status, (done.returncode, argv)
    return took


def from_the_end(argv: list[str]) -> float:
    """Return the time from a command's last act to its caller's exit, in ms."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return (time.monotonic_ns() - int(done.stdout)) / 1e6


def begin(host: list[str], name: str) -> tuple[subprocess.Popen[bytes], dict[str, object]]:
    """Start a launch that stays; return its caller and its record."""
    argv = [*host, "--name", name, "--", "sleep", "300"]
    quiet = subprocess.DEVNULL  # the command holds what it is given for as long as it lives
    caller = subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE)
    ledger = os.path.expanduser("~/.local/state/persistent-sessions/ledger")
    while True:
        for each in os.listdir(ledger):
            if each.endswith(".json") and not each.startswith("."):
                with open(f"{ledger}/{each}", encoding="utf-8") as f:
                    record: dict[str, object] = json.load(f)
                if record["name"] == name and record["panePid"]:
                    return caller, record
        time.sleep(0.01)


def from_the_loss(host: list[str], name: str, pane: bool) -> float:
    """Return the time from a SIGKILL of the pane's process or server to what is said, in ms."""
    caller, record = begin(host, name)
    argv = ["tmux", "-S", str(record["tmuxSocket"]), "display-message", "-p", "#{pid}"]
    server = int(subprocess.run(argv, stdout=subprocess.PIPE).stdout)
    began = time.perf_counter()
    os.kill(int(str(record["panePid"])) if pane else server, 9)
    if pane:  # a lost server is a hang-up, which the command's own end answers
        assert caller.stderr and b"without a receipt" in caller.stderr.readline()
    else:
        caller.wait()
    took = (time.perf_counter() - began) * 1000
    caller.wait()
    return took


def wakeups(pid: object) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return sum(int(line.split()[1]) for line in f if "ctxt_switches" in line)


def inside(runs: int) -> dict[str, list[float]]:
    code = f'import gc,sys;gc.disable();sys.path.append("{os.environ["HOME"]}/{LIB}");'
    door = [PYTHON, "-IS", "-c", code + "import persistent_sessions as m;m.exit_with(m.main())"]
    host = [*door, "host"]
    seven = ["--", "sh", "-c", "exit 7"]
    made = iter(range(1_000_000))

    def server(*before: str) -> list[str]:
        socket = f"{os.environ['XDG_RUNTIME_DIR']}/s{next(made)}"
        return [*before, "tmux", "-S", socket, "-f", "/dev/null", "new-session", "-d", "true"]

    variants: dict[str, Callable[[], float]] = {
        "U": lambda: clock([PYTHON, "-IS", "-c", "pass"]),
        "scope": lambda: clock([*SCOPE, "true"]),
        "server": lambda: clock(server()),
        "hosted": lambda: clock([*host, *seven], 7),
        "direct": lambda: clock(["env", "AGENT_LEDGER_MUX=0", *host, *seven], 7),
        "by a person": lambda: clock(["env", "AGENT_LEDGER_HUMAN=1", *host, *seven], 7),
        "end": lambda: from_the_end([*host, "--", PYTHON, "-IS", "-c", LAST_ACT]),
        "bare end": lambda: from_the_end([PYTHON, "-IS", "-c", LAST_ACT]),
    }
    found: dict[str, list[float]] = {name: [] for name in variants}
    for run in range(runs + 2):
        for name, act in variants.items():
            took = act()
            if run >= 2:
                found[name].append(took)
    for at in range(9):
        found.setdefault("pane lost", []).append(from_the_loss(host, f"pane{at}", True))
        found.setdefault("server lost", []).append(from_the_loss(host, f"server{at}", False))
    caller, record = begin(host, "idle")
    time.sleep(5)
    before = wakeups(caller.pid), wakeups(record["panePid"])
    time.sleep(MINUTE)
    after = wakeups(caller.pid), wakeups(record["panePid"])
    found["wake-ups"] = [float(b - a) for a, b in zip(before, after)]
    caller.kill()
    return found


# ---- Outside --------------------------------------------------------------


def boxed(runs: int) -> dict[str, list[float]]:
    """Run this file in a machine of its own, as a user with a manager."""
    sys.path.insert(0, TESTS)
    import boxlib
    from support import SESSIONS

    with tempfile.TemporaryDirectory(prefix="psbox", dir="/var/tmp") as folder:
        box = boxlib.Box(folder)
        try:
            box.boot()
            box.add_user("ann")
            box.put_program("ann", SESSIONS, "/home/ann/.local/bin/ps")
            box.put_program("ann", os.path.abspath(__file__), "/home/ann/bench.py")
            door = f"mkdir -p {LIB} && ln -s ../../bin/ps {LIB}/persistent_sessions.py"
            box.user("ann", "sh", "-c", f"cd && {door}")
            argv = ("python3", "/home/ann/bench.py", "--inside", "--runs", str(runs))
            done = box.user("ann", *argv, timeout=900)
        finally:
            box.remove()
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=31)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(inside(args.runs)))
        return 0
    found = boxed(args.runs)
    median = {name: statistics.median(values) for name, values in found.items()}
    unit = median["U"]
    for name, value in median.items():
        print(f"{name:12} {value:8.2f} ms  {value / unit:6.2f} U")
    p90 = sorted(found["end"])[int(len(found["end"]) * 0.9)]
    parts = unit + median["scope"] + median["server"]
    bars = (
        ("X1 directly / (U + server)", median["direct"] / (unit + median["server"]), 1.5),
        ("X1 hosted / (U + scope + server)", median["hosted"] / parts, 1.9),
        ("W1 end to exit, median in U", median["end"] / unit, 0.5),
        ("W1 end to exit, p90 in ms", p90, 5.0),
        ("W2 wake-ups of the caller in a minute", found["wake-ups"][0], 0.0),
        ("W2 wake-ups of the supervisor in a minute", found["wake-ups"][1], 0.0),
        ("W2 pane lost to saying so, ms", median["pane lost"], 10.0),
    )
    print()
    for what, value, bar in bars:
        print(f"{what:44} {value:8.2f}  bar {bar:5.2f}  {'ok' if value <= bar else 'MISSED'}")
    return 0 if all(value <= bar for _, value, bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
