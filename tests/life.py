"""A model of a long life: what must be back after each boot, and what may have been lost.

A session has a fate: whether a person ended it, its conversation, what was said in it.  What is
done to it changes the fate; a power cut in the middle of doing it leaves more than one fate
possible, and what is seen after the boot decides which one it was.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from boxlib import PROGRAM
from boxpeople import NAME, UNIT, Person
from support import wait_until

PATIENCE = 60.0  # seconds for sessions to come back on a busy machine

# Runs in the box and tells what is true there, from Claude's files and the kernel alone.
LOOK = r"""
import glob, json, os, subprocess, sys

STATE = os.path.expanduser("~/.local/state/persistent-sessions")
CLAUDE = os.path.expanduser("~/.claude")


def born(pid):
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def said(session):
    found, whole = [], False
    for path in glob.glob(f"{CLAUDE}/projects/*/{session}.jsonl"):
        for line in open(path, errors="replace"):
            record = json.loads(line)
            whole = whole or record.get("type") in ("user", "assistant", "system", "attachment")
            content = record.get("message", {}).get("content", "")
            if record.get("type") == "user" and not record.get("isMeta"):
                if isinstance(content, str) and not content.startswith("<command-name>"):
                    found.append(content)
    return found, whole


def lines(path):
    try:
        return open(path).read().split()
    except OSError:
        return []


live, writers = {}, {}
for path in glob.glob(f"{CLAUDE}/sessions/*.json"):
    try:
        record = json.load(open(path))
    except ValueError:
        continue  # a power cut left half of it, or it is being written
    if born(record["pid"]) != record["procStart"]:
        continue
    try:
        name = dict(e.split("=", 1) for e in open(f"/proc/{record['pid']}/environ").read()
                    .split("\0") if "=" in e).get("PS_SESSION_NAME", "")
        folder = os.readlink(f"/proc/{record['pid']}/cwd")
        words = open(f"/proc/{record['pid']}/cmdline").read()
    except OSError:
        continue
    if "/claude\0" not in words:
        continue  # another process: equal boots give equal pids and equal times
    writers.setdefault(record["sessionId"], []).append(record["pid"])
    prompts, kept = said(record["sessionId"])
    live.setdefault(name, []).append({
        "id": record["sessionId"], "pid": record["pid"], "folder": folder, "prompts": prompts,
        "kept": kept, "ready": record.get("status") == "idle"})
names = os.listdir(STATE) if os.path.isdir(STATE) else []
panes = subprocess.run(["tmux", "-u", "list-panes", "-a", "-F", "#{session_name} #{pid}"],
                       capture_output=True, text=True).stdout.split("\n")
unit = subprocess.run(["systemctl", "--user", "show", "--value", "-p", "ActiveState", sys.argv[1]],
                      capture_output=True, text=True).stdout.strip()
print(json.dumps({
    "live": live,
    "twice": {i: pids for i, pids in writers.items() if len(pids) > 1},
    "panes": sorted(p.split()[0] for p in panes if p),
    "server": next((p.split()[1] for p in panes if p), ""),
    "unit": unit,
    "ended": sorted(n[:-8] for n in names if n.endswith(".retired")),
    "filed": {n[:-3]: lines(f"{STATE}/{n}") for n in names if n.endswith(".id")},
    "stray": sorted(n for n in names if n.startswith(".") or n.endswith(".job")),
    "files": len(names),
}))
"""


class Fate(NamedTuple):
    """One thing that may be true of a session.  A conversation "" is one nobody has seen yet."""

    ended: bool
    id: str = ""
    prompts: tuple[str, ...] = ()
    kept: bool = False  # its conversation is on disk: it can be resumed

    def after_death(self) -> Fate:
        """Return what comes back: an id to which nothing was ever said is no conversation."""
        return self if self.ended or self.kept else Fate(False)


class Session:
    """One session of the model: a declared row or an opened folder."""

    def __init__(self, name: str, folder: str, declared: bool) -> None:
        self.name, self.folder, self.declared = name, folder, declared
        self.fates = [Fate(False)]
        self.seen: list[str] = []  # conversations that were acknowledged, the newest last
        self.kept: list[str] = []  # those of them that are on disk

    @property
    def fate(self) -> Fate:
        assert len(self.fates) == 1, f"{self.name} has not been looked at: {self.fates}"
        return self.fates[0]

    def matches(self, fate: Fate, found: dict[str, Any] | None, ended: bool) -> bool:
        """Tell whether what was seen is this fate."""
        if fate.ended or found is None:
            return fate.ended and found is None and ended
        known = found["id"] == fate.id if fate.id else found["id"] not in self.seen
        said = tuple(found["prompts"]) == fate.prompts and found["kept"] >= fate.kept
        return known and said and not ended and found["folder"] == self.folder

    def settle(self, found: dict[str, Any] | None, ended: bool) -> bool:
        """Take in what was seen; False when that must not be."""
        fitting = [f for f in self.fates if self.matches(f, found, ended)]
        if not fitting:
            return False
        fate = fitting[0]
        if found is not None:
            fate = fate._replace(id=found["id"], kept=found["kept"])
            if found["id"] not in self.seen:
                self.seen.append(found["id"])
            if found["kept"] and found["id"] not in self.kept:
                self.kept.append(found["id"])
        self.fates = [fate]
        return True


class Deed(NamedTuple):
    """Something that is done to a session: what runs in the box, and what may come of it."""

    what: str
    script: str
    after: Fate  # once it is done
    between: tuple[Fate, ...]  # when the power goes in the middle of it
    dies: bool = False  # it takes the session down until the next tick
    everybody: bool = False  # and all others with it


def keys(session: Session, text: str) -> str:
    target = f"-t '={session.name}:'"
    return f"tmux send-keys {target} -l '{text}'; tmux send-keys {target} Enter"


class Life:
    """One machine with its person, driven by a seed, held against the model."""

    def __init__(self, ann: Person, seed: int, sessions: Iterable[tuple[str, bool]]) -> None:
        self.ann, self.rng, self.seed = ann, random.Random(seed), seed
        self.sessions = [Session(name, f"{ann.home}/{name}", d) for name, d in sessions]
        self.story: list[str] = []
        self.told = 0
        self.boots = 0
        ann.write(f"{ann.home}/look.py", LOOK)

    # ---- Looking ----------------------------------------------------------

    def look(self) -> dict[str, Any]:
        done = self.ann.run("/usr/bin/python3", "-IS", "look.py", UNIT, check=False)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def tell(self, text: str) -> None:
        self.story.append(text)
        print(f"[{self.boots}] {text}", flush=True)

    def fail(self, why: str, seen: dict[str, Any]) -> None:
        fates = "\n".join(f"{s.name}: {s.fates} seen {s.seen}" for s in self.sessions)
        journal = self.ann.box.journal("-n", "60", f"_UID={self.ann.out('id', '-u')}")
        told = "\n".join(self.story[-40:])
        listed = self.ann.ps("list", check=False).stdout
        text = json.dumps(seen, indent=1)
        raise AssertionError(
            f"seed {self.seed}, boot {self.boots}: {why}\n{told}\n\nmodel:\n{fates}\n\n"
            f"seen:\n{text}\n\n{listed}\n{journal}"
        )

    def wrong(self, seen: dict[str, Any]) -> list[str]:
        """Return what is not as the model has it; [] settles every fate."""
        if not seen:
            return ["nothing could be seen"]
        found = []
        for s in self.sessions:
            mine = seen["live"].get(s.name, [])
            one = mine[0] if len(mine) == 1 else None
            ended = s.name in seen["ended"]
            fits = any(s.matches(f, one, ended) for f in s.fates)
            filed = seen["filed"].get(s.name, [])[:1]
            if len(mine) > 1 or not fits or (one and not (one["ready"] and filed == [one["id"]])):
                found.append(f"{s.name}: {one or len(mine)}, ended: {ended}")
        return found

    def never(self, seen: dict[str, Any]) -> list[str]:
        """Return what must not be at any moment."""
        found = [f"two writers: {seen['twice']}"] if seen.get("twice") else []
        for s in self.sessions:
            filed = seen.get("filed", {}).get(s.name, [])
            lost = [i for i in s.kept[-15:] if i not in filed]
            found += [f"{s.name}: {lost} is no longer filed"] if lost else []
        return found

    def settle(self, why: str) -> None:
        """Wait until everything is as one of its fates has it, and decide on that one."""
        seen: dict[str, Any] = {}

        def good() -> bool:
            nonlocal seen
            seen = self.look()
            if self.never(seen):
                self.fail(f"{why}: {self.never(seen)}", seen)
            return seen.get("unit") in ("inactive", "failed") and not self.wrong(seen)

        if not wait_until(good, PATIENCE):
            self.fail(f"{why}: {self.wrong(seen)}, unit {seen.get('unit')}", seen)
        for s in self.sessions:
            s.settle((seen["live"].get(s.name) or [None])[0], s.name in seen["ended"])
        if self.never(seen):
            self.fail(f"{why}: {self.never(seen)}", seen)

    # ---- What is done -----------------------------------------------------

    def prompt(self, s: Session) -> Deed:
        self.told += 1
        text, now = f"word-{self.told}", s.fate
        after = now._replace(prompts=(*now.prompts, text), kept=True)
        return Deed(f"{s.name}: says {text}", keys(s, text), after, (now, after))

    def clear(self, s: Session) -> Deed:
        after = Fate(False, "", (), True)
        return Deed(f"{s.name}: /clear", keys(s, "/clear"), after, (s.fate, after))

    def exit(self, s: Session) -> Deed:
        after = s.fate._replace(ended=True)
        return Deed(f"{s.name}: /exit", keys(s, "/exit"), after, (s.fate, after))

    def open(self, s: Session) -> Deed:
        """An ended session gets a new conversation; cut short it may be as it was, either way."""
        old = s.fate
        script = f"cd '{s.folder}' && persistent-sessions open"
        between = (old, old._replace(ended=False), Fate(False))
        return Deed(f"{s.name}: opened anew", script, Fate(False), between)

    def revive(self, s: Session) -> Deed:
        back = s.fate._replace(ended=False).after_death()
        script = f"persistent-sessions start '{s.name}'"
        return Deed(f"{s.name}: started again", script, back, (s.fate, back))

    def kill_agent(self, s: Session) -> Deed:
        script = f"kill -9 $(sed -n 's/^claude=//p' .local/state/{NAME}/'{s.name}'.run)"
        return self.death(s, "its agent is killed", script)

    def kill_supervisor(self, s: Session) -> Deed:
        script = f"kill -9 $(sed -n 's/^pid=//p' .local/state/{NAME}/'{s.name}'.run)"
        return self.death(s, "its supervisor is killed", script)

    def kill_session(self, s: Session) -> Deed:
        return self.death(s, "its pane is killed", f"tmux kill-session -t '={s.name}'")

    def kill_server(self, s: Session) -> Deed:
        return self.death(s, "the server is killed", "tmux kill-server", everybody=True)

    def kill_server_hard(self, s: Session) -> Deed:
        script = "kill -9 $(tmux display-message -p '#{pid}')"
        return self.death(s, "the server is killed with -9", script, everybody=True)

    def death(self, s: Session, what: str, script: str, everybody: bool = False) -> Deed:
        back = s.fate.after_death()
        return Deed(f"{s.name}: {what}", script, back, (back,), True, everybody)

    def choose(self) -> tuple[Session, Deed]:
        s = self.rng.choice(self.sessions)
        if s.fate.ended:
            return s, self.rng.choice((self.open, self.open, self.revive))(s)
        usual = [self.prompt] * 6 + [self.clear] * 3 + [self.exit] * 2
        deaths = [self.kill_agent, self.kill_supervisor, self.kill_session]
        return s, self.rng.choice([*usual, *deaths, self.kill_server, self.kill_server_hard])(s)

    # ---- How it goes on ---------------------------------------------------

    def foresee(self, s: Session, deed: Deed, fates: Iterable[Fate]) -> None:
        if deed.everybody:
            for other in self.sessions:
                other.fates = [other.fate.after_death()]
        s.fates = list(dict.fromkeys(fates))

    def tick(self) -> None:
        """Run the unit as the timer does, until everything is back that died."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.ann.systemctl("start", UNIT, check=False)
            if not self.wrong(self.look()) or time.monotonic() > deadline:
                return

    def act(self, s: Session | None = None, deed: Deed | None = None) -> None:
        """Do one thing and see that it is done."""
        if s is None or deed is None:
            s, deed = self.choose()
        self.tell(deed.what)
        self.ann.run("sh", "-c", deed.script, check=False)
        self.foresee(s, deed, [deed.after])
        if deed.dies:
            self.tick()
        self.settle(deed.what)

    def begin(self) -> None:
        """Do one thing, and do not wait for it."""
        s, deed = self.choose()
        wait = self.rng.choice((0.0, 0.05, 0.1, 0.2, 0.4, 0.8)) * self.rng.random()
        self.tell(f"{deed.what}, and {wait * 1000:.0f} ms later:")
        script = f"({deed.script}) >/dev/null 2>&1 </dev/null"
        if deed.dies and self.rng.random() < 0.5:
            script += f"; systemctl --user start {UNIT}"
        argv = [*PROGRAM, "user", self.ann.box.folder, self.ann.name, "sh", "-c", script]
        quiet = subprocess.DEVNULL
        self.doing = subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet)
        time.sleep(wait)
        self.foresee(s, deed, deed.between)

    def lose_power(self, end: Callable[[], None], what: str) -> None:
        self.tell(what)
        end()
        for s in self.sessions:
            s.fates = list(dict.fromkeys(f.after_death() for f in s.fates))

    def reboot(self) -> None:
        """Let the machine go down in one of the ways there are, and see what comes back."""
        box = self.ann.box
        self.doing = None
        if self.rng.random() < 0.6:
            self.begin()
        if self.doing is not None:  # only our end of it: it goes on in the box
            self.doing.kill()
            self.doing.wait()
        off = self.rng.random() < 0.25
        self.lose_power(box.off if off else box.crash, "a shutdown" if off else "a power cut")
        box.boot()
        self.boots += 1
        while self.rng.random() < 0.25:
            wait = self.rng.random() * 3
            time.sleep(wait)
            self.lose_power(box.crash, f"a power cut {wait:.1f} s after the boot")
            box.boot()
            self.boots += 1
        self.settle("after the boot")
        self.tell(f"all back: {sum(not s.fate.ended for s in self.sessions)} live")
        if not wait_until(lambda: self.look().get("stray") == [], 10):
            self.fail("something is left over", self.look())
