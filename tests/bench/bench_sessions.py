#!/usr/bin/python3
"""Measure sessions: ticks, restoring many, open, hook, list, status, memory; as ratios.

    tests/bench/bench_sessions.py [--runs 21] [--sessions 100]

U is `/usr/bin/python3 -IS -c pass`, Y is `sh -c 'python3 -c pass; tmux list-panes -a'`, the
"bash tick" asks tmux about each session twice, as a shell script would, and the "bash restore"
makes each session by a tmux of its own.  Variants run in turn (A B C A B C ...), so that a
drifting machine drifts for all; medians are shown.  The status is 1 where a bar is missed.
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
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
AGENT = """#!/bin/sh
# a claude that is up at once: it leaves its record, a transcript and what its hook would have
# filed, and forks nothing
read -r id </proc/sys/kernel/random/uuid
case "$*" in *--resume*) id=${*#*--resume } id=${id%% *} ;; esac
read -r line </proc/$$/stat
set -- ${line##*) }
about='"kind":"interactive","status":"idle"'
said='{"type":"user","message":{"role":"user","content":"hello"}}'
echo "$said" >>"$HOME/.claude/projects/-bench/$id.jsonl"
printf '{"pid":%s,"sessionId":"%s","cwd":"%s","procStart":"%s",%s}' \\
    $$ "$id" "$PWD" "${20}" "$about" >"$HOME/.claude/sessions/$$.json"
if [ -n "$PS_SESSION_NAME" ]; then
    filed=$HOME/.local/state/persistent-sessions/$PS_SESSION_NAME
    echo "$id" >"$filed.id"
    printf '%s\\n' event=SessionStart "id=$id" why=startup at=9999999999 pid=$$ \\
        "name=$PS_SESSION_NAME" >"$filed.event"
fi
echo up >>"$HOME/marks"
exec sleep 100000
"""


class Bar(NamedTuple):
    """A promise and what was measured."""

    what: str
    value: float
    limit: float
    unit: str


class World:
    """A private home with the program installed, a manifest in git and its sessions."""

    def __init__(self, count: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="psb", dir="/tmp"))
        self.home = self.folder / "home"
        self.count = count
        private = ("home/.local/bin", "home/.config/persistent-sessions")
        claude = ("home/.claude/sessions", "home/.claude/projects/-bench")
        for name in (*private, *claude, "t", "r"):
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
        self.library = f"{self.home}/.local/lib/persistent-sessions"
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
        """Return a command line as `install` writes it."""
        door = (
            f'import gc,sys;gc.disable();sys.path+=["{self.library}/parts/{args[0]}",'
            f'"{self.library}"];import persistent_sessions as m;m.exit_with(m.main())'
        )
        return [PYTHON, "-IS", "-c", door, *args]

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


def naive_memory(world: World) -> float:
    """Return the private memory in MB of a supervisor that imports everything.

    Of several, like ours: what they share (the interpreter, its libraries) is nobody's own.
    """
    code = (
        "import argparse,json,subprocess,pathlib,dataclasses,typing,tempfile,shutil,re,signal,"
        f"logging,hashlib,datetime,sys;sys.path.append({world.library!r});"
        "import persistent_sessions;print('up',flush=True);input()"
    )
    argv = [PYTHON, "-I", "-c", code]
    children = [subprocess.Popen(argv, stdin=-1, stdout=-1, env=world.env) for _ in range(5)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    used = memory([child.pid for child in children])
    for child in children:
        child.communicate(b"\n")
    return used


class Restore(NamedTuple):
    """What it took until the last agent ran, and until every session was seen to be up."""

    last: float  # seconds
    done: float
    forks: float  # for each session


def forks_so_far() -> int:
    """Return how many processes this machine has made since its boot.  Source: proc_stat(5)."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes"))


def restore(world: World, argv: list[str]) -> Restore:
    """Have `argv` bring back every session of a world that has none."""
    before, began = forks_so_far(), time.time()
    ran = subprocess.run(argv, env=world.env, capture_output=True)
    done = time.time() - began
    deadline = time.monotonic() + 30
    marks = world.home / "marks"
    while marks.read_text().count("up") < world.count:
        if time.monotonic() > deadline:
            raise SystemExit(f"not every session came up:\n{ran.stderr.decode()[-2000:]}")
        time.sleep(0.01)
    forks = (forks_so_far() - before) / world.count
    return Restore(marks.stat().st_mtime - began, done, forks)


def bash_restore(world: World) -> list[str]:
    script = (
        f"for i in $(seq 0 {world.count - 1}); do tmux has-session -t =s$i 2>/dev/null ||"
        f" tmux new-session -d -s s$i -c {world.home}/s$i claude; done"
    )
    return ["bash", "-c", script]


def measure_restore(world: World) -> list[Bar]:
    by_bash = restore(world, bash_restore(world))
    world.forget()
    first = restore(world, world.argv("start"))
    print(f"{world.count} sessions opened: the last agent runs after {first.last:.2f} s")
    world.forget()
    ours = restore(world, world.argv("start"))
    print(f"restored: the last agent runs after {ours.last:.2f} s, all are seen to be up after"
          f" {ours.done:.2f} s; by bash {by_bash.last:.2f} s, unseen")  # fmt: skip
    return [Bar("R2 forks for a restored session, its own two included", ours.forks, 4, "")]


def hook_env(world: World) -> dict[str, str]:
    """Return the environment of session s0's claude."""
    pane, pid = world.tmux("list-panes", "-t", "=s0", "-F", "#{pane_id} #{pane_pid}").split()
    kids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    env = {**world.env, "TMUX_PANE": pane, "PS_SESSION_NAME": "s0", "CLAUDE_PID": kids[0]}
    env["TMUX"] = world.tmux("display-message", "-p", "#{socket_path},1,0").strip()
    return env


def measure_many(world: World, runs: int) -> list[Bar]:
    """Measure what a world of many live sessions costs each command."""
    payload = {"session_id": "00000001-0000-4000-8000-000000000001", "source": "clear"}
    payload["hook_event_name"] = "SessionStart"
    unit = [PYTHON, "-IS", "-c", "pass"]
    ms = compare(
        {
            "U": (unit, b""),
            "Y": (["sh", "-c", "python3 -c pass; tmux list-panes -a"], b""),
            "tick": (world.argv("start"), b""),
            "status": (world.argv("status"), b""),
            "list": (world.argv("list"), b""),
            "open": (world.argv("open", "s0"), b""),
            "bash tick": (["bash", "-c", bash_tick(world.count)], b""),
        },
        world.env,
        runs,
    )
    hook = {"U": (unit, b""), "hook": (world.argv("hook"), json.dumps(payload).encode())}
    hooked = compare(hook, hook_env(world), runs)
    for name, value in {**ms, "hook": hooked["hook"]}.items():
        print(f"{name:<12} {value:8.1f} ms  {value / ms['U']:6.2f} U")
    share, tick = memory(world.pids()) / naive_memory(world), ms["tick"] / ms["Y"]
    return [
        Bar("T1 a tick of 100 against Y (it always reads every pane)", tick, 1.2, "Y"),
        Bar("T2 a tick of 100, every pane read, against Y", tick, 1.5, "Y"),
        Bar("T2 a tick of 100 against a bash tick", ms["tick"] / ms["bash tick"], 0.05, "x"),
        Bar("H1 the hook", hooked["hook"] / hooked["U"], 3.3, "U"),
        Bar("S1 status", ms["status"] / ms["U"], 3.5, "U"),
        Bar("R4 a waiting supervisor's memory against a naive one's", share, 1 / 3, "x"),
    ]


def measure_few(count: int, runs: int) -> tuple[int, float]:
    """Return the child processes of a tick over so many sessions, and its cost in U."""
    world = World(count)
    try:
        restore(world, world.argv("start"))
        variants = {"U": ([PYTHON, "-IS", "-c", "pass"], b""), "tick": (world.argv("start"), b"")}
        ms = compare(variants, world.env, runs)
        print(f"tick of {count:<4} {ms['tick']:8.1f} ms  {ms['tick'] / ms['U']:6.2f} U")
        return children_of(world), ms["tick"] / ms["U"]
    finally:
        world.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--sessions", type=int, default=100)
    args = parser.parse_args()
    world = World(args.sessions)
    try:
        bars = [*measure_restore(world), *measure_many(world, args.runs)]
        children = {children_of(world)}
    finally:
        world.end()
    children |= {measure_few(count, args.runs)[0] for count in (1, 10)}
    most = max(children) if len(children) == 1 else 99
    bars.append(Bar("T3 child processes of a tick of 1, 10, 100", most, 5, ""))
    print()
    for bar in bars:
        print(f"{bar.what:58}{bar.value:8.2f} {bar.unit:2} bar {bar.limit:5.2f}  "
              f"{'ok' if bar.value <= bar.limit else 'MISSED'}")  # fmt: skip
    return 0 if all(bar.value <= bar.limit for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
