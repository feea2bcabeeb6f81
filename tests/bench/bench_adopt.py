#!/usr/bin/python3
"""Measure task-adopt: what it adds to the start of a session, as ratios within one run.

    tests/bench/bench_adopt.py [--runs 31]

U is `/usr/bin/python3 -IS -c pass`.  The hook runs as installed, through its import door, as
a whole process with a payload on its standard input; "script" is the same file executed, and
"node" does the same work in node, where there is one.  All of them get the environment that
this was started in, as Claude's hooks do: node alone reads much more when it names extra
certificates, which "node, bare" shows.  Variants run in turn (A B C A B C ...),
so that a drifting machine drifts for all; medians are shown.  The status is 1 where a bar is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TESTS)

from adopt_support import HOOK, NEW, OLD, Box, task  # noqa: E402

PYTHON = "/usr/bin/python3"
NODE = shutil.which("node") or ""
EQUIVALENT = os.path.join(TESTS, "data", "adopt", "equivalent.mjs")


def uuid(kind: int, at: int) -> str:
    return f"{kind:08d}-0000-4000-8000-{at:012d}"


class World:
    """A folder with a box for each case, and the program installed with its door."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="psb", dir="/tmp")
        shutil.copy(HOOK, f"{self.folder}/task_adopt.py")
        code = f'import sys;sys.path.append("{self.folder}");import task_adopt as m;'
        self.door = [PYTHON, "-IS", "-c", f"{code}sys.exit(m.main())"]
        self.few = self.crowd(10, 10, 0)
        self.many = self.crowd(5000, 1000, 0)
        self.hits = self.crowd(1000, 1000, 1000)
        self.exact = Box(f"{self.folder}/exact")
        self.exact.store(NEW, *(task(n) for n in range(1, 41)))
        self.source = Box(f"{self.folder}/source")
        self.source.session(OLD, *(task(n) for n in range(1, 41)))

    def crowd(self, transcripts: int, lists: int, both: int) -> Box:
        """Make a box of so many conversations and lists, `both` of them of one session."""
        box = Box(f"{self.folder}/crowd{transcripts}-{both}")
        for at in range(transcripts):
            box.transcript(uuid(1, at))
        for at in range(lists):
            box.store(uuid(1 if at < both else 2, at), task(1, "completed"), __lock="")
        return box


def timed(argv: list[str], box: Box, session: str) -> float:
    env = {**os.environ, **box.env()}
    payload = box.payload(session).encode()
    began = time.perf_counter()
    done = subprocess.run(argv, input=payload, stdout=subprocess.PIPE, env=env)
    took = (time.perf_counter() - began) * 1000
    assert done.returncode == 0, argv
    return took


def measure(world: World, runs: int) -> dict[str, float]:
    """Return each variant's median in ms, run in turn; each adoption is for a new session."""
    variants = {
        "U": ([PYTHON, "-IS", "-c", "pass"], world.few),
        "nothing to do": (world.door, world.few),
        "nothing to do, script": ([HOOK], world.few),
        "own list of 40": (world.door, world.exact),
        "5,000 transcripts, 1,000 lists": (world.door, world.many),
        "1,000 finished lists of this folder": (world.door, world.hits),
        "adopt 40": (world.door, world.source),
    }
    if NODE:
        variants["node -e 0"] = ([NODE, "-e", "0"], world.few)
        bare = ["/usr/bin/env", "-i", f"HOME={world.few.home}", NODE]
        variants["node, bare"] = ([*bare, "-e", "0"], world.few)
        variants["nothing to do, node"] = ([NODE, EQUIVALENT], world.few)
        variants["own list of 40, node"] = ([NODE, EQUIVALENT], world.exact)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for at in range(runs + 1):
        for name, (argv, box) in variants.items():
            took = timed(argv, box, uuid(3, at) if name == "adopt 40" else NEW)
            if at:  # the first round warms up
                times[name].append(took)
    assert len(box.lists() | world.source.lists()) > runs, "nothing was adopted"
    return {name: statistics.median(values) for name, values in times.items()}


def peak(world: World, size: int) -> float:
    """Return the most memory, in MB, that the hook takes after compacting so long a transcript."""
    box = Box(f"{world.folder}/size{size}")
    typed = {"type": "user", "isSidechain": False, "message": {"content": "go on"}}
    line = json.dumps({**typed, "cwd": box.project}).encode() + b"\n"
    box.transcript(NEW, raw=line * (size // len(line)))
    code = "import resource,subprocess,sys;subprocess.run(sys.argv[1:],stdout=-3);"
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"  # not of this process
    argv, payload = [PYTHON, "-IS", "-c", code, *world.door], box.payload(NEW, "compact")
    env = {**os.environ, **box.env()}
    done = subprocess.run(argv, input=payload.encode(), stdout=subprocess.PIPE, env=env, check=True)
    return int(done.stdout) / 1024


def bars(ms: dict[str, float]) -> list[tuple[str, float, float]]:
    """Return (what, measured, bar) for each promise."""
    nothing, own = ms["nothing to do"], ms["own list of 40"]
    found = [
        ("nothing to do / U", nothing / ms["U"], 2.8),
        ("own list of 40 / U", own / ms["U"], 3.0),
        ("5,000 transcripts / 10", ms["5,000 transcripts, 1,000 lists"] / nothing, 1.7),
        ("adopt 40, durable / U", ms["adopt 40"] / ms["U"], 4.5),
    ]
    if NODE:
        found.append(("nothing to do / node", nothing / ms["nothing to do, node"], 0.35))
        found.append(("own list of 40 / node", own / ms["own list of 40, node"], 0.35))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=31)
    world = World()
    try:
        if NODE:
            same = {
                world.exact.hook(argv=argv).stdout.replace(", ", ",").replace(": ", ":")
                for argv in (world.door, [NODE, EQUIVALENT])
            }
            assert len(same) == 1, f"node does something else: {same}"
        ms = measure(world, parser.parse_args().runs)
        small, large = peak(world, 20_000_000), peak(world, 200_000_000)
    finally:
        shutil.rmtree(world.folder)
    print(f"{'':38}{'ms':>8}{'x U':>7}")
    for name, value in ms.items():
        print(f"{name:38}{value:8.2f}{value / ms['U']:7.2f}")
    print(f"\n{'':38}{'is':>8}{'bar':>7}")
    found = [*bars(ms), ("memory, 200 MB of transcript / 20 MB", large / small, 1.2)]
    for name, value, bar in found:
        print(f"{name:38}{value:8.2f}{bar:7.2f}{'' if value <= bar else '  MISSED'}")
    return 0 if all(value <= bar for _, value, bar in found) else 1


if __name__ == "__main__":
    sys.exit(main())
