#!/usr/bin/python3
"""Measure sessions: a tick, the hook, status, open, restoring many; ratios within one run.

    tests/bench/bench_sessions.py [--runs 21] [--sessions 100] [--quick]

U is `/usr/bin/python3 -IS -c pass`, Y is `sh -c 'python3 -c pass; tmux list-panes -a'`, and
the "bash tick" asks tmux about each session twice, as a shell script would.  Variants run in
turn (A B C A B C ...), so that a drifting machine drifts for all; medians are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
AGENT = """#!/bin/sh
# a claude that is up at once: it leaves its record and stays
mkdir -p "$HOME/.claude/sessions"
id=$(echo "$*" | sed -n 's/.*--resume \\([^ ]*\\).*/\\1/p')
start=$(cut -d' ' -f22 /proc/$$/stat)
about='"kind":"interactive","status":"idle"'
printf '{"pid":%s,"sessionId":"%s","cwd":"%s","procStart":"%s",%s}' \\
    $$ "$id" "$PWD" "$start" "$about" >"$HOME/.claude/sessions/$$.json"
echo up >>"$HOME/marks"
exec sleep 100000
"""


class World:
    """A private home with the program installed, a manifest in git and its sessions."""

    def __init__(self, count: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="psb", dir="/tmp"))
        self.home = self.folder / "home"
        self.count = count
        for name in ("home/.local/bin", "home/.config/persistent-sessions", "t", "r"):
            (self.folder / name).mkdir(parents=True, mode=0o700)
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{self.home}/.local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TMUX_TMPDIR": str(self.folder / "t"),
            "XDG_RUNTIME_DIR": str(self.folder / "r"),
            "USER": "bench",
        }
        agent = self.home / ".local/bin/claude"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        subprocess.run(
            [PYTHON, "-IS", str(ROOT / "persistent_sessions.py"), "install"],
            env=self.env,
            capture_output=True,
        )
        library = f"{self.home}/.local/lib/persistent-sessions"
        self.door = (
            f'import gc,sys;gc.disable();sys.path.append("{library}");'
            "import persistent_sessions as m;m.exit_with(m.main())"
        )
        self.declare(count)

    def declare(self, count: int) -> None:
        rows = []
        for at in range(count):
            (self.home / f"s{at}").mkdir(exist_ok=True)
            rows.append(f"s{at}\t{self.home}/s{at}\t-\t-\t-\n")
        clone = self.home / "clone"
        git = ["git", "-c", "user.name=b", "-c", "user.email=b@example.org", "-C", str(clone)]
        subprocess.run(["git", "init", "-q", str(clone)], check=True)
        (clone / "persistent-sessions.tsv").write_text("".join(rows))
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "rows"], check=True)
        head = ["update-ref", "refs/remotes/origin/main", "HEAD"]
        subprocess.run([*git, *head], check=True)
        config = {"manifest": {"clone": str(clone)}, "network": {"wait_s": 0}}
        config["launch"] = {"parallel": 100}
        path = self.home / ".config/persistent-sessions/config.json"
        path.write_text(json.dumps(config))

    def argv(self, *args: str) -> list[str]:
        return [PYTHON, "-IS", "-c", self.door, *args]

    def run(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.argv(*args), env=self.env, capture_output=True)

    def tmux(self, *args: str) -> str:
        return subprocess.run(
            ["tmux", "-u", *args], env=self.env, capture_output=True, text=True
        ).stdout

    def pids(self) -> list[int]:
        return [int(p) for p in self.tmux("list-panes", "-a", "-F", "#{pane_pid}").split()]

    def forget(self) -> None:
        """End the server and its sessions and wait for them."""
        pids = self.pids()
        self.tmux("kill-server")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(os.path.exists(f"/proc/{p}") for p in pids):
            time.sleep(0.05)
        (self.home / "marks").unlink(missing_ok=True)

    def end(self) -> None:
        self.forget()
        shutil.rmtree(self.folder, ignore_errors=True)


def timed(argv: list[str], env: dict[str, str], stdin: bytes = b"") -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=env, input=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def compare(variants: dict[str, tuple[list[str], bytes]], env: dict[str, str], runs: int):
    """Return each variant's median in ms, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for at in range(runs + 1):
        for name, (argv, stdin) in variants.items():
            took = timed(argv, env, stdin)
            if at:
                times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def bash_tick(count: int) -> str:
    return (
        f"for i in $(seq 0 {count - 1}); do tmux has-session -t =s$i &&"
        " tmux capture-pane -p -t =s$i: | grep -q trust; done"
    )


def children_of(world: World) -> int:
    """Return how many processes one tick starts, as strace counts them."""
    log = world.folder / "strace"
    argv = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", str(log), *world.argv("start")]
    subprocess.run(argv, env=world.env, capture_output=True)
    lines = [line for line in log.read_text().splitlines() if line.endswith("= 0")]
    return len(lines) - 1


def memory(pids: list[int]) -> float:
    """Return the private memory of processes in MB each."""
    total = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        for line in text.splitlines():
            if line.startswith(("Private_Clean", "Private_Dirty")):
                total += int(line.split()[1])
    return total / 1024 / max(len(pids), 1)


def naive_memory() -> float:
    """Return the private memory in MB of a waiting process that imports everything."""
    code = (
        "import argparse,json,subprocess,pathlib,dataclasses,typing,tempfile,shutil,re,signal,"
        "logging,hashlib,datetime;print('up',flush=True);input()"
    )
    child = subprocess.Popen([PYTHON, "-c", code], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    used = memory([child.pid])
    child.communicate(b"\n")
    return used


def row(name: str, value: float, limit: float, unit: str) -> None:
    good = "ok  " if value <= limit else "OVER"
    print(f"{good} {name:<58} {value:8.2f} {unit} (bar {limit:g})")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--sessions", type=int, default=100)
    args = parser.parse_args()
    world = World(args.sessions)
    try:
        measure(world, args.runs)
    finally:
        world.end()
    return 0


def measure(world: World, runs: int) -> None:
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = world.run("start")
    restored = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if len(world.pids()) != world.count:
        print(done.stderr.decode()[-2000:], file=sys.stderr)
        raise SystemExit(f"only {len(world.pids())} of {world.count} sessions came up")
    print(f"{world.count} sessions restored and verified in {restored:.2f} s;"
          f" our own share of CPU {after.ru_utime - before.ru_utime:.2f} s")  # fmt: skip
    payload = json.dumps(
        {"session_id": "00000001-0000-4000-8000-000000000001", "source": "clear"}
        | {"hook_event_name": "SessionStart"}
    ).encode()
    pane, pid = world.tmux("list-panes", "-t", "=s0", "-F", "#{pane_id} #{pane_pid}").split()
    kids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    hook_env = {**world.env, "TMUX_PANE": pane, "PS_SESSION_NAME": "s0", "CLAUDE_PID": kids[0]}
    hook_env["TMUX"] = world.tmux("display-message", "-p", "#{socket_path},1,0").strip()
    median = compare(
        {
            "U": ([PYTHON, "-IS", "-c", "pass"], b""),
            "Y": (["sh", "-c", "python3 -c pass; tmux list-panes -a"], b""),
            "tick": (world.argv("start"), b""),
            "status": (world.argv("status"), b""),
            "list": (world.argv("list"), b""),
            "bash tick": (["bash", "-c", bash_tick(world.count)], b""),
        },
        world.env,
        runs,
    )
    hook = compare(
        {"U": ([PYTHON, "-IS", "-c", "pass"], b""), "hook": (world.argv("hook"), payload)},
        hook_env,
        runs,
    )
    for name, value in median.items():
        print(f"     {name:<12} {value:8.1f} ms  {value / median['U']:6.2f} U")
    print(f"     {'hook':<12} {hook['hook']:8.1f} ms  {hook['hook'] / hook['U']:6.2f} U")
    row("T2 a tick with every pane read, against Y", median["tick"] / median["Y"], 1.5, "Y")
    row("T2 against a bash tick", median["tick"] / median["bash tick"], 0.05, "x")
    row("T3 child processes of a tick", children_of(world), 5, "")
    row("H1 the hook", hook["hook"] / hook["U"], 3.3, "U")
    row("S1 status", median["status"] / median["U"], 3.5, "U")
    share = memory(world.pids()) / naive_memory()
    row("R4 memory of a supervisor against one that imports everything", share, 1 / 3, "x")


if __name__ == "__main__":
    sys.exit(main())
