"""Input that nobody would write: no traceback, no hang, nothing let in, an honest word instead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import NamedTuple

import hostile
import pytest
import support
from hostile import Maker, cases, named, quickly, raw_controls
from sessions import new_id

import persistent_sessions as program
import task_adopt

ID = new_id(7)
RECORD = {
    "pid": 4711, "sessionId": ID, "cwd": "/srv/api", "startedAt": 1, "procStart": "123",
    "kind": "interactive", "entrypoint": "cli", "tmux": "api:@1.%2", "status": "idle",
    "url": "https://claude.ai/code/x", "parkedJobId": "abcdef01",
}  # fmt: skip
CONFIG = {
    "manifest": {"clone": "/srv/fleet", "ref": "refs/remotes/origin/main", "path": "a.tsv",
                 "file": "", "fetch": True},
    "claude": {"path": "/bin/claude", "remote_control": True, "start_args": ["--x"],
               "open_args": []},
    "tmux": {"socket": "/tmp/s"}, "network": {"wait_s": 0},
    "launch": {"parallel": 2, "verify_s": 3}, "trust": {"open": True},
    "host": {"max_sessions": 0, "keep_days": 14, "detach_key": "C-]"},
    "notify": {"command": ["true"]},
}  # fmt: skip
LAUNCH = {
    "id": "0123456789ab", "name": "nightly", "argv": ["sh", "-c", "x"], "cwd": "/", "started": 1.5,
    "boot": "b", "callerPid": 4711, "callerStart": "12", "parent": "", "direct": "",
    "mux": {"kind": "tmux"}, "tmuxSession": "nightly", "tmuxSocket": "/tmp/s", "unit": "u.scope",
    "panePid": 4712, "paneStart": "13", "ended": None, "status": None,
}  # fmt: skip
TRUST = {"numStartups": 7, "projects": {"/srv": {"hasTrustDialogAccepted": False, "n": 1.50}}}
SETTINGS = {
    "hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "x", "timeout": 10}]}]},
    "env": {"A": "1"}, "cleanupPeriodDays": 30, "model": "opus",
}  # fmt: skip
TASK = {
    "id": "3", "subject": "s", "description": "d", "status": "pending", "blocks": ["4"],
    "blockedBy": [], "owner": "", "metadata": {"a": 1},
}  # fmt: skip
SPOKEN = {
    "type": "user", "isSidechain": False, "cwd": "/srv", "message": {"content": "go on"},
    "toolUseResult": {"answers": {"q": "a"}}, "attachment": {"hookEvent": "SessionStart"},
}  # fmt: skip
ROWS = f'# a comment\napi\t/srv/api\t#12\t{ID}\tme\nweb\t/srv/web\nx\t/srv/x\t["--a"]\tweb\n'
RUN = f"boot=b\npid=4711\nstart=1\nclaude=4712\nclaude_start=2\npane=%1\nresume={ID}\nat=5.5\n"
EVENT = f"event=SessionStart\nid={ID}\nwhy=startup\nat=5\npid=4712\nname=api\n"
RETIRED = 'at=x\ndirectory=/srv\nissue=#1\npin=-\nuser=me\ndeclared=yes\nargs=["a"]\nrenamed=b\n'
HEALTH = "failures=3\nlast=5.5\nnotified=BLOCKED\n"
PANES = "api\t\t%1\t4711\t0\t200\t50\t0\t1700000000\t1\nweb\tweb\t%2\t4712\t1\t80\t24\t1\t5\t\n"
SCREEN = f"{'─' * 80}\n Do you?\n ❯ No, exit\n   Yes, I trust this folder\n Enter to confirm\n"
RC = f"export A=1\n{program.SHELL_FUNCTION}alias x=y\n"


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def check_words(words):
    """Check that each can be a word of a command line or a file's name."""
    for word in words:
        assert b"\0" not in os.fsencode(word)


# ---- Parsers ----------------------------------------------------------------


def try_rows(make: Maker):
    text = text_of(make.fields(ROWS.encode()))
    for declared in (True, False):
        specs, bad = program.parse_rows(text, declared=declared)
        for spec in specs:
            assert not program.classify_name(spec.name), spec
            assert not spec.renamed or not program.classify_name(spec.renamed), spec
            assert not spec.pin or program.is_session_id(spec.pin), spec
            check_words((spec.name, spec.directory, *spec.args))
            decision = program.Decision(spec, program.LAUNCH, why=spec.issue)
            outcome = program.format_outcome(program.Outcome(decision, True, spec.issue))
            assert not raw_controls(outcome)
        again, _ = program.parse_rows(program.format_registry(specs), declared=False)
        assert [s.name for s in again] == [s.name for s in specs]
        assert all(isinstance(line, str) for line in bad)
        assert not raw_controls(program.format_table([(s.name, s.issue) for s in specs] or [("",)]))


def try_config(make: Maker):
    try:
        values, _ = program.parse_config(text_of(make.json(CONFIG)))
    except program.Failure as e:
        assert len(str(e)) < 2000
        return
    config = program.choose_config(values)
    check_words((config.clone, config.ref, config.path, config.file, config.claude, config.socket))
    check_words((*config.start_args, *config.open_args, *config.notify, config.detach_key))
    assert 0 <= config.verify < 1e9 and 0 <= config.network_wait < 1e9


def try_record(make: Maker):
    try:
        record = program.parse_record(text_of(make.json(RECORD)))
    except ValueError:
        return
    assert program.is_session_id(record.session_id) and 0 < record.pid < 2**63
    assert program.process_start(record.pid) != "no"
    check_words((record.directory, record.tmux, record.start))


def try_launch(make: Maker):
    entry = program.parse_launch(text_of(make.json(LAUNCH)))
    if entry is None:
        return
    hosted = program.Hosted(entry, program.classify_hosted(entry, False, False))
    json.dumps(program.hosted_row(hosted), allow_nan=False)
    assert not raw_controls(program.format_hosted([hosted]))
    program.process_lives(entry.pane, entry.pane_start, entry.boot)
    assert program.parse_launch(program.format_launch(entry)) == entry


def try_state(make: Maker):
    for parse, text in (
        (program.parse_supervisor, RUN),
        (program.parse_event, EVENT),
        (program.parse_health, HEALTH),
        (program.parse_ids, f"{ID}\n{new_id(8)}\n"),
        (lambda t: program.parse_retired("api", t), RETIRED),
        (program.parse_dropin, '[Service]\nEnvironment="A=1"\n'),
    ):
        parse(text_of(make.fields(text.encode())))
    spec = program.parse_retired("api", text_of(make.fields(RETIRED.encode())))
    check_words((spec.directory, spec.renamed, *spec.args))
    assert not spec.renamed or not program.classify_name(spec.renamed)
    assert not spec.directory or not program.classify_directory(spec.directory)
    row = program.format_registry([spec])
    again, bad = program.parse_rows(row, declared=False)
    assert not spec.directory or (not bad and again[0].directory == spec.directory)


def try_panes(make: Maker):
    text = text_of(make.fields(PANES.encode()))
    try:
        panes = program.parse_panes(text, "/tmp/s")
    except program.Failure:
        return
    program.choose_session(panes, ["api"])


def try_words(make: Maker):
    for parse in (program.parse_version, program.parse_span, program.parse_number):
        parse(make.text())
    for act in (
        lambda: program.parse_receipt(make.text()),
        lambda: program.parse_receipt(text_of(make.damage(b"  7\n"))),
        lambda: program.parse_host([text_of(make.line()) for _ in range(4)]),
        lambda: program.parse_host(["--name", text_of(make.line()), "--", "x"]),
    ):
        try:
            act()
        except program.Failure as e:
            assert str(e)


def try_trust(make: Maker):
    text = text_of(make.json(TRUST))
    folder = make.one("/srv", "/new", make.text())
    try:
        new = program.set_member(text, ("projects", folder, "hasTrustDialogAccepted"), True)
    except (ValueError, RecursionError):
        return
    value = json.loads(new.lstrip("\ufeff"), strict=False)
    assert value["projects"][folder]["hasTrustDialogAccepted"] is True
    assert program.choose_trusted("/srv", value["projects"]) in ("", "/srv", "/")


def try_settings(make: Maker):
    try:
        own = program.parse_object(text_of(make.json(SETTINGS)))
    except ValueError:
        return
    settings = program.session_settings({"SessionStart": ["a"], "SessionEnd": ["a"]}, own)
    assert settings["hooks"]["SessionStart"][-1]["hooks"][0]["command"] == "a"


def try_rc(make: Maker):
    text = text_of(make.damage(RC.encode()))
    program.classify_rc(text, "/x")
    try:
        with_block = program.set_block(text, program.SHELL_FUNCTION)
    except program.Failure:
        return
    assert program.set_block(with_block, program.SHELL_FUNCTION) == with_block
    without = program.set_block(with_block, "")
    if program.BEGIN not in text:
        assert without in (text, text + "\n")


def try_screen(make: Maker):
    text = text_of(make.damage(SCREEN.encode()))
    program.classify_screen(text)
    assert program.choose_key(text) in ("", "Enter", "Up", "Down")
    assert not raw_controls(program.format_table([("NAME",), (text,), (make.text(),)]))


def try_names(make: Maker):
    folder = "/" + make.text().replace("\0", "").strip("/") + make.one("", "/" + make.text())
    owners = {make.text(): make.text() for _ in range(3)}
    name = program.plan_name(folder, "/home/me", make.text() or "me", owners)
    assert not program.classify_name(name), (folder, name)
    assert not program.classify_name(program.choose_hosted_name(make.text())[:16])
    word = make.text().replace("=", "")
    env = {make.one("PATH", f"LC_{word}", f"CLAUDE_CODE_USE_{word}"): make.text()}
    kept = program.choose_kept(env)
    assert program.parse_dropin(program.format_dropin(kept)) == kept
    assert program.format_dropin(kept).count("\n") == 1 + len(kept)


def try_adopt(make: Maker):
    raw = make.json(TASK)
    one = task_adopt.parse_task("3.json", raw, 5)
    told = [one] if one else []
    assert len(task_adopt.format_tasks("x", told, 4096).encode()) <= 4096
    for heading, text in task_adopt.parse_recent(task_adopt.parse_dict(make.json(SPOKEN))):
        assert heading in task_adopt.RECENT
        assert not raw_controls(task_adopt.format_line(text, 700))
    if task_adopt.is_component(text := make.text()):
        assert os.path.basename(text) == text and b"\0" not in os.fsencode(text)


TRIES = {f.__name__[4:]: f for f in (
    try_rows, try_config, try_record, try_launch, try_state, try_panes, try_words, try_trust,
    try_settings, try_rc, try_screen, try_names, try_adopt)}  # fmt: skip


@pytest.mark.limit(900)
@pytest.mark.parametrize("label", TRIES)
def test_nothing_breaks_a_parser(label):
    for case in cases(label, 500, 1.5):
        with named(label, case):
            quickly(lambda case=case: TRIES[label](case.make))


# ---- Whole commands ---------------------------------------------------------

LAUNCH_ID = str(LAUNCH["id"])
OWN = ".local/state/persistent-sessions"
STRANGE_ENV = (
    "TMUX", "TMUX_PANE", "CLAUDE_PID", "PS_SESSION_NAME", "AGENT_LEDGER_ID", "TERM", "LANG",
    "CLAUDE_CODE_SESSION_ID", "CLAUDE_CODE_TASK_LIST_ID", "PS_CLAUDE", "ANTHROPIC_BASE_URL",
    "CLAUDE_CODE_USE_X", "ZDOTDIR", "SHELL",
)  # fmt: skip
MAY_CHANGE = (f"{OWN}/", ".local/bin/", ".local/lib/", ".config/systemd/", ".claude.json",
              ".claude/settings.json", ".bashrc", ".zshrc",
              ".config/persistent-sessions/settings.")  # fmt: skip
SHIMMED = {"tmux": "/usr/bin/tmux", "git": "/usr/bin/git", "systemctl": "", "systemd-run": "",
           "loginctl": "", "journalctl": "", "ssh": "", "sudo": "", "runuser": ""}  # fmt: skip
SHIM = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" '
' >>"$ARGV_LOG"
exec REAL "$@"
"""
OPTIONS = {  # what may begin with "-" on each program's command line
    "tmux": "-u -S -a -F -p -t -d -s -V",
    "git": "-C -c --version",
    "systemctl": "--user --property --quiet --now --no-block -- -p --value",
    "systemd-run": "--user --scope --quiet --collect --unit --property -u -S",
    "journalctl": "--user --no-pager --quiet -o -n --unit",
    "loginctl": "",
}


def paths_of_world(home) -> dict[str, tuple[str, bytes]]:
    """Return every file of a home that is read: how it is written, and a good content."""
    config = {**CONFIG, "manifest": {"file": f"{home}/manifest.tsv"}, "notify": {}, "tmux": {},
              "claude": {"start_args": ["--model", "x"]}}  # fmt: skip
    rows = f"api\t{home}/api\t#12\t{ID}\nweb\t{home}/web\ngone\t{home}/gone\n"
    opened = f"own\t{home}/own\t[]\t-\n"
    trust = {"projects": {f"{home}/api": {"hasTrustDialogAccepted": True, "n": 1.50}}}
    spoken = json.dumps({**SPOKEN, "cwd": f"{home}/api"}).encode() + b"\n"
    retired = RETIRED.replace("/srv", f"{home}/web")
    record = {**RECORD, "cwd": f"{home}/api", "pid": os.getpid()}
    return {
        ".config/persistent-sessions/config.json": ("json", json.dumps(config).encode()),
        ".config/persistent-sessions/settings.api.json": ("json", json.dumps(SETTINGS).encode()),
        "manifest.tsv": ("fields", rows.encode()),
        f"{OWN}/registry.tsv": ("fields", opened.encode()),
        f"{OWN}/manifest.tsv": ("fields", rows.encode()),
        f"{OWN}/api.id": ("fields", f"{ID}\n".encode()),
        f"{OWN}/own.run": ("fields", RUN.encode()),
        f"{OWN}/own.event": ("fields", EVENT.encode()),
        f"{OWN}/own.exit": ("fields", b"rc=1 signalled=- reason=- at=x\n"),
        f"{OWN}/own.health": ("fields", HEALTH.encode()),
        f"{OWN}/own.screen": ("raw", SCREEN.encode()),
        f"{OWN}/old.retired": ("fields", retired.encode()),
        f"{OWN}/ledger/{LAUNCH_ID}.json": ("json", json.dumps(LAUNCH).encode()),
        f".claude/sessions/{os.getpid()}.json": ("json", json.dumps(record).encode()),
        ".claude/sessions/4711.json": ("json", json.dumps(RECORD).encode()),
        f".claude/projects/p/{ID}.jsonl": ("json", spoken),
        ".claude/jobs/ab/state.json": ("json", b'{"state": "stopped", "sessionId": "x"}'),
        ".claude/settings.json": ("json", json.dumps(SETTINGS).encode()),
        ".claude.json": ("json", json.dumps(trust).encode()),
        f".claude/tasks/{ID}/3.json": ("json", json.dumps(TASK).encode()),
        ".bashrc": ("raw", RC.encode()),
        ".zshrc": ("raw", b"export B=1"),
        ".config/systemd/user/persistent-sessions.service.d/environment.conf": (
            "fields", b'[Service]\nEnvironment="PATH=/bin"\n'),
    }  # fmt: skip


class Said(NamedTuple):
    """What a command answered; nothing in it was changed on the way."""

    returncode: int
    stdout: str
    stderr: str


class World:
    """A home with everything in it, some of it hostile, and an outside that nobody may touch."""

    def __init__(self, private) -> None:
        self.private, self.home, self.outside = private, private / "home", private / "outside"
        self.log = private / "argv"
        (private / "shims").mkdir()
        for name, real in SHIMMED.items():
            path = private / "shims" / name
            path.write_text(SHIM.replace('REAL "$@"', f'{real} "$@"' if real else "false"))
            path.chmod(0o755)
        os.environ["PATH"] = f"{private}/shims:{os.environ['PATH']}"
        os.environ["ARGV_LOG"] = str(self.log)
        self.start = ()

    def fill(self, make: Maker) -> None:
        """Make the home anew; a few of its files are hostile."""
        for folder in (self.home, self.outside):
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("api", "web", "own", ".local/bin", "outside"):
            (self.home / name).mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "kept").write_text("kept\n")
        (self.home / "diary").write_text("mine\n")
        shutil.copy(os.path.join(support.TESTS, "fakes", "claude"), self.home / ".local/bin")
        self.log.write_bytes(b"")
        files = paths_of_world(self.home)
        hostile_ones = {make.one(*files) for _ in range(make.one(1, 1, 2, 4))}
        for name, (how, raw) in files.items():
            path = str(self.home / name)
            if name in hostile_ones:
                value = json.loads(raw) if how == "json" else None
                new = {"json": lambda v=value: make.json(v), "fields": lambda r=raw: make.fields(r)}
                changed = new.get(how, lambda r=raw: make.damage(r))()
                make.noted((name, make.put(path, changed, str(self.outside))))
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                hostile.make("file", path, raw, str(self.outside))
        self.start = self.snapshot()

    def snapshot(self) -> dict[str, bytes]:
        """Return the content of every file that no command may change."""
        found = {}
        for top, _, names in os.walk(self.private):
            for name in names:
                path = os.path.join(top, name)
                inner = os.path.relpath(path, self.home)
                ours = inner.startswith((*MAY_CHANGE, "../t/", "../r/"))
                if os.path.isfile(path) and not os.path.islink(path) and not ours:
                    with open(path, "rb") as f:
                        found[path] = f.read() if path != str(self.log) else b""
        return found

    def check(self, done, words) -> None:
        """Check what a command answered, what it ran, and what it left behind."""
        said = done.stdout + done.stderr
        assert done.returncode in (0, 1, 2), done
        assert "Traceback" not in said, said
        if words[0] not in ("manifest", "capture"):
            assert not raw_controls(done.stderr), done.stderr
            assert not raw_controls(done.stdout), done.stdout
        if "--json" in words and done.returncode < 2 and done.stdout:
            json.loads(done.stdout)
        if done.returncode and words[0] not in ("status", "list", "doctor", "start", "hook"):
            assert done.stderr, (words, done)
        for argv in self.argv():
            allowed = OPTIONS[argv[0]].split()
            words = [w for w in argv[1:] if w.startswith("-")]
            assert all(w.partition("=")[0] in allowed for w in words), argv
        now = self.snapshot()
        assert now == self.start, {k for k in {*now, *self.start} if now.get(k) != self.start.get(k)}

    def argv(self) -> list[list[str]]:
        lines = self.log.read_bytes().decode("utf-8", "surrogateescape").split("\0\n\0")
        return [line.split("\0") for line in lines if line]


def strange_environment(make: Maker) -> dict[str, str]:
    if not make.chance(40):
        return {}
    value = make.text().replace("\0", "")[:5000].encode("utf-8", "replace").decode()
    return {make.one(*STRANGE_ENV): make.noted(value)}


def word(make: Maker) -> str:
    """Return a word of a command line: any that the kernel would pass on."""
    return make.noted(text_of(make.line().replace(b"\0", b"")[:5000]))


COMMANDS = (
    ("list",), ("list", "--json"), ("status",), ("start", "--dry-run"), ("manifest",), ("doctor",),
    ("doctor", "--json"), ("retire", "api"), ("logs", "own"), ("logs", LAUNCH_ID), ("install",),
    ("rename", "own", "new"), ("_complete", "start"), ("attach", "api"), ("attach", LAUNCH_ID[:4]),
    ("stop", LAUNCH_ID), ("trust", "api"), ("trust", "own"), ("uninstall",), ("adopt", "api"),
    ("retire", word), ("rename", "own", word), ("attach", word), ("logs", word), ("open", word),
    ("open", "--resume", word), ("open", "--new", word), ("start", "--dry-run", word),
    ("_complete", word), (word,), ("list", word), ("--", word), ("hook",), ("hook",),
)  # fmt: skip


def payload(make: Maker) -> bytes:
    event = {
        "session_id": ID, "transcript_path": f"/p/{ID}.jsonl", "cwd": "/srv", "source": "startup",
        "hook_event_name": make.one("SessionStart", "SessionEnd"), "reason": "other",
    }  # fmt: skip
    return make.json(event)


@pytest.fixture
def world(private):
    return World(private)


@pytest.mark.limit(1500)
def test_no_file_breaks_a_command(world, ps):
    for case in cases("commands", 90, 16):
        make = case.make
        with named("commands", case):
            world.fill(make)
            words = [w if isinstance(w, str) else w(make) for w in make.one(*COMMANDS)]
            make.noted(words)
            given = payload(make) if words == ["hook"] else b""
            done = run_bytes(ps.argv, words, given, strange_environment(make), world.home)
            world.check(done, words)


@pytest.mark.limit(1500)
def test_no_file_breaks_the_task_hook(world, adopt):
    for case in cases("task hook", 50, 6):
        make = case.make
        with named("task hook", case):
            world.fill(make)
            words = make.one((), (), (), ("status",), ("status", "--to", ID), ("install",),
                             ("uninstall",), ("adopt", "--from", ID, "--to", word))  # fmt: skip
            words = [w if isinstance(w, str) else w(make) for w in words]
            done = run_bytes(adopt.argv, words, payload(make), strange_environment(make), world.home)
            if not words:
                assert done.returncode == 0
                assert not done.stdout or isinstance(json.loads(done.stdout), dict)
            world.check(done, words or ["hook"])


def run_bytes(argv, words, given, env, cwd):
    """Run a program with bytes on its stdin; text out."""
    done = subprocess.run(
        [*argv, *words],
        input=given,
        env={**os.environ, **env},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        start_new_session=True,
    )
    return Said(done.returncode, text_of(done.stdout), text_of(done.stderr))
