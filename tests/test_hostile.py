"""Input that nobody would write: no traceback, no hang, nothing let in, an honest word instead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import hostile
import pytest
import support
from hostile import Maker, cases, named, quickly, raw_controls
from sessions import (
    NAME,
    agent,
    argv_log,
    claude_folder,
    clone,
    configure,
    declare,
    ended,
    file_id,
    head_id,
    launches,
    new_id,
    panes,
    prompt,
    row,
    state,
    transcript,
)  # fmt: skip

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
    except program.Failure:
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
    named = make.text()
    folder = make.one("/srv", "/new", named if named.isprintable() else "/x")
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
    for case in cases(label, 500, 0.8):
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
MAY_CHANGE = (f"{OWN}/", ".claude/sessions/", ".claude.json", ".local/bin/", ".local/lib/",
              ".config/systemd/",
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
    "tmux": "-u -S -a -F -p -t -d -s -V -",
    "git": "-C -c --version",
    "systemctl": "--user --property --quiet --now --no-block -- -p --value",
    "systemd-run": "--user --scope --quiet --collect --unit --property -u -S -",
    "journalctl": "--user --no-pager --quiet -o -n --unit",
    "loginctl": "",
}


def paths_of_world(home) -> dict[str, tuple[str, bytes]]:
    """Return every file of a home that is read: how it is written, and a good content."""
    config = {**CONFIG, "manifest": {"file": f"{home}/manifest.tsv"}, "notify": {}, "tmux": {},
              "launch": {"verify_s": 3},
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
        now = {k: v for k, v in self.snapshot().items() if k in self.start or "/tasks/" not in k}
        assert now == self.start

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
    for case in cases("commands", 90, 9):
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
    for case in cases("task hook", 50, 4):
        make = case.make
        with named("task hook", case):
            world.fill(make)
            words = make.one((), (), (), ("status",), ("status", "--to", ID), ("install",),
                             ("uninstall",), ("adopt", "--from", ID, "--to", word))  # fmt: skip
            words = [w if isinstance(w, str) else w(make) for w in words]
            done = run_bytes(
                adopt.argv, words, payload(make), strange_environment(make), world.home
            )
            if not words:
                assert done.returncode == 0
                assert not done.stdout or isinstance(json.loads(done.stdout), dict)
            world.check(done, words or ["hook"])


def strange_server(make: Maker, world: World) -> None:
    """Have a tmux server of the person's with sessions, titles, options and screens of any kind."""
    (world.home / "shown").write_bytes(make.damage(SCREEN.encode()))
    world.start = world.snapshot()
    name = make.one("api", "web", word(make)[:100])
    support.run_tmux("new-session", "-d", "-s", name, f"cat {world.home}/shown; sleep 300")
    target = make.one("$0", "=api:", "%0")
    for words in (
        ("select-pane", "-t", target, "-T", word(make)),
        ("set-option", "-t", target, program.MARK, word(make)),
        ("set-environment", "-g", "LC_X", word(make)),
        ("rename-window", "-t", target, word(make)),
        ("resize-window", "-t", target, "-x", str(make.one(1, 30, 5000)), "-y", "2"),
    ):
        if make.chance(60):
            support.run_tmux(*words)
    world.log.write_bytes(b"")  # these were ours


@pytest.mark.tmux
@pytest.mark.limit(1500)
def test_no_file_and_no_server_breaks_a_launch(world, ps):
    for case in cases("launches", 8, 8):
        make = case.make
        with named("launches", case):
            world.fill(make)
            if make.chance(60):
                strange_server(make, world)
            folder = world.home
            words = make.one(["start"], ["start", "api"], ["open", "api"], ["open", "--new"])
            if words[0] == "open":
                name = word(make).replace("/", "_")[:60] or "x"
                folder = world.home / "api" / f"x{name}"
                folder.mkdir()
            done = run_bytes(ps.argv, words, b"", strange_environment(make), folder)
            world.check(done, words)
            world.check(run_bytes(ps.argv, ["list"], b"", {}, world.home), ["list"])
            support.end_tmux_below([str(world.private)])


def run_bytes(argv, words, given, env, cwd):
    """Run a program with bytes on its stdin; text out."""
    done = subprocess.run(
        [*argv, *words],
        input=given,
        env={**os.environ, **env},
        cwd=cwd,
        capture_output=True,
        timeout=60,
        start_new_session=True,
    )
    return Said(done.returncode, text_of(done.stdout), text_of(done.stderr))


# ---- What was found: the exact input, its symptom as the name -----------------


def test_half_a_character_among_arguments_does_not_keep_every_session_down(ps, claude):
    declare(row("api"))
    state().mkdir(parents=True)
    (state() / "registry.tsv").write_text(f'web\t{os.environ["HOME"]}\t["\\ud800", "a\\u0000b"]\n')
    done = ps("start")
    assert {"api", "web"} == set(panes()) and done.returncode == 0, done.stderr


@pytest.mark.parametrize("group", ['"start_args": ["\\ud800"]', '"path": "\\udfff"'])
def test_half_a_character_in_the_configuration_is_named(group):
    with pytest.raises(program.Failure, match=r"must be a (list|path)"):
        program.parse_config(f'{{"claude": {{{group}}}}}')


@pytest.mark.parametrize("change", [
    {"sessionId": "a\0b"}, {"sessionId": "../../x"}, {"pid": 10**300}, {"pid": 2**31},
])  # fmt: skip
def test_a_record_with_what_cannot_be_is_half_a_record(change):
    with pytest.raises(ValueError):
        program.parse_record(json.dumps({**RECORD, **change}))


@pytest.mark.parametrize("change", [
    {"started": 10**400}, {"started": float("inf")}, {"callerPid": 10**300},
    {"ended": float("nan")},
])  # fmt: skip
def test_a_ledger_record_with_an_absurd_number_is_listed(ps, change):
    ledger = state() / "ledger"
    ledger.mkdir(parents=True)
    (ledger / f"{LAUNCH_ID}.json").write_text(json.dumps({**LAUNCH, **change}))
    done = ps("list", "--json")
    assert json.loads(done.stdout)["hosted"][0]["id"] == LAUNCH_ID and not done.stderr


def test_an_error_has_a_size_that_can_be_read(ps):
    configure().write_text(json.dumps({"x" * 100000: 1}))
    assert 4000 < len(ps("manifest").stderr) < 5000


def test_a_record_named_after_no_number_is_passed_over(ps):
    folder = claude_folder() / "sessions"
    folder.mkdir(parents=True)
    (folder / "\u00b2.json").write_text("{")
    declare(row("api"))
    assert ps("list").stdout.split("\n")[1].split()[:2] == ["api", "LAUNCH"]
    (state() / ".x.\u00b2.1.tmp").write_text("")
    assert "Traceback" not in ps("list").stderr


def test_a_pin_that_is_no_id_is_a_bad_row():
    specs, bad = program.parse_rows("api\t/a\t-\t../../x\nweb\t/w\n", declared=True)
    assert [s.name for s in specs] == ["web"] and "line 1" in bad[0]


def test_an_earlier_name_cannot_lead_out_of_the_state_folder(ps, home):
    state().mkdir(parents=True)
    (state() / "registry.tsv").write_text(f"api\t{home}\t-\t../evil\n")
    ps("retire", "api")
    assert not (state().parent / "evil.retired").exists()


def test_a_folder_that_ends_in_a_space_is_refused_not_lost(ps, claude, home):
    (home / "app ").mkdir()
    done = ps("open", cwd=home / "app ")
    assert done.returncode == 1 and "ends in a space" in done.stderr


STEERING = "\x1b]0;x\x07\x9b31m\u202e"


@pytest.mark.parametrize("words", [("list",), ("start", "--dry-run"), ("start",), ("status",)])
def test_what_steers_a_terminal_is_spelt_out(ps, words):
    declare(row("api", issue=STEERING), row(f"b{STEERING}"), f"web\t/x\t-\t{STEERING}")
    done = ps(*words)
    assert not raw_controls(done.stdout + done.stderr), done
    assert "list" not in words or "\\x1b]0;x\\x07\\x9b31m\\u202e" in done.stdout


def test_a_last_screen_and_an_end_are_shown_without_their_escapes(ps, home):
    declare(row("api"))
    state().mkdir(parents=True)
    (state() / "api.screen").write_text(f"one {STEERING}\n")
    (state() / "api.exit").write_text(f"rc=1 reason={STEERING}\n")
    done = ps("logs", "api")
    assert "one \\x1b]0;x" in done.stdout and not raw_controls(done.stdout)


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
def test_a_conversation_that_is_no_file_is_not_waited_for(ps, private, kind):
    declare(row("api"))
    file_id("api", ID)
    path = transcript(ID)
    path.unlink()
    hostile.make(kind, str(path), b"", str(private))
    done = ps("start", "--dry-run", timeout=20)
    assert done.stdout.startswith("api: UNKNOWN") and str(path) in done.stdout


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "link", "/dev/zero", "loop"])
def test_a_state_file_that_is_none_is_not_an_empty_one(private, kind):
    hostile.make(kind, str(private / "api.id"), b"", str(private))
    with pytest.raises(program.Failure, match=r"api\.id"):
        program.read_state(str(private / "api.id"))


@pytest.mark.parametrize("name", ["registry.tsv", "api.id", "api.run"])
def test_a_pipe_in_the_place_of_a_state_file_is_named(ps, name):
    declare(row("api"))
    state().mkdir(parents=True)
    os.mkfifo(state() / name)
    done = ps("start", "--dry-run", timeout=20)
    assert done.returncode == 1 and name in done.stdout + done.stderr


def test_a_file_too_large_to_read_is_not_cut(home, ps):
    (home / ".bashrc").write_text("# x\n" * 5_000_000)
    size = (home / ".bashrc").stat().st_size
    done = ps("install")
    assert (home / ".bashrc").stat().st_size == size and ".bashrc: File too large" in done.stderr


DEPTHS = """
import sys
sys.path.insert(0, {root!r})
import persistent_sessions as program
paths = program.Paths.from_env({{"HOME": {home!r}}})
for depth in (940, *range(960, 1001, 10), 5000):
    with open({settings!r}, "w") as f:
        f.write('{{"a":' * depth + "1" + "}}" * depth)
    try:
        program.write_settings(paths, "api")
    except program.Failure:
        pass
"""


def test_settings_nested_too_deeply_are_no_traceback(home):
    configure()
    state().mkdir(parents=True)
    settings = str(home / ".config/persistent-sessions/settings.api.json")
    code = DEPTHS.format(root=support.ROOT, home=str(home), settings=settings)
    argv = [sys.executable, "-IS", "-c", code]
    assert subprocess.run(argv, stderr=subprocess.PIPE, text=True).stderr == ""


def test_claudes_own_file_nested_too_deeply_is_left_alone(ps, claude, home):
    declare(row("api"))
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    (home / ".claude.json").write_text(deep)
    done = ps("trust", "api")
    assert done.returncode == 1 and "nothing was written" in done.stderr, done.stderr
    assert (home / ".claude.json").read_text() == deep


@pytest.mark.parametrize("days", ["1" + "0" * 400, "NaN", "-5", '"x"'])
def test_an_absurd_retention_is_no_traceback(ps, days):
    claude_folder().mkdir()
    (claude_folder() / "settings.json").write_text(f'{{"cleanupPeriodDays": {days}}}')
    assert "unused conversations are kept for 30 days" in ps("doctor").stdout


@pytest.mark.tmux
@pytest.mark.parametrize("name", ["my app", "a/b"])
def test_a_session_renamed_to_no_row_comes_back_in_its_last_conversation(ps, claude, tmux, name):
    declare(row("api"))
    ps("start")
    prompt("api", "hello")
    tmux("rename-session", "-t", "=api", name)
    for line in ("/clear", "again"):
        tmux("send-keys", "-t", f"={name}:", line, "Enter")
    last = support.wait_until(lambda: [i for i in [head_id("api")] if i and old_and_new(i)])
    os.kill(agent("api"), 9)
    assert last and support.wait_until(lambda: ended("api"))
    assert f"resumed {last[0]}" in ps("start").stderr


def old_and_new(newest):
    """Tell whether the newest conversation has been spoken in, and is not the first one."""
    lines = (state() / "api.id").read_text().split()
    return len(lines) == 2 and list(claude_folder().glob(f"projects/*/{newest}.jsonl"))


@pytest.mark.tmux
def test_text_in_our_mark_does_not_hide_the_panes(ps, claude, tmux):
    declare(row("api"))
    tmux("new-session", "-d", "-s", "other", "sleep", "300")
    tmux("set-option", "-t", "=other:", program.MARK, "a\nb\tc")
    assert ps("start").returncode == 0


def test_a_ref_is_no_option_of_git(ps, home):
    clone(row("api") + "\n")
    configure(manifest={"clone": str(home / "clone"), "ref": f"--output={home}/x"})
    done = ps("manifest")
    assert done.returncode == 1 and "is no ref" in done.stderr and not list(home.glob("x*"))


def test_a_variables_name_is_no_directive_of_the_unit():
    env = {"LC_X\nExecStart=/bin/x": "1", 'LC_"': "2", "LC_OK": "3"}
    assert program.choose_kept(env) == {"LC_OK": "3"}


def test_a_completion_runs_nothing(ps, home):
    state().mkdir(parents=True)
    (state() / f"$({hostile.COMMAND.replace('/', chr(92))}).retired").touch()
    (state() / "good.retired").touch()
    assert ps("_complete", "start").stdout.split() == ["good"]


# ---- Things planted where our files go ----------------------------------------

as_root = pytest.mark.skipif(os.getuid() != 0, reason=f"{support.ABSENT}root")


@as_root
@pytest.mark.parametrize(
    ("name", "kind"),
    [("registry.tsv", "foreign"), ("api.id", "foreign"), ("api.run", "foreign link"),
     ("api.event", "link"), ("manifest.tsv", "link")],
)  # fmt: skip
def test_what_was_planted_in_the_state_folder_is_refused_by_name(ps, private, name, kind):
    declare(row("api"))
    state().mkdir(parents=True)
    (private / "kept").write_text(f"{ID}\n")
    hostile.make(kind, str(state() / name), f"{ID}\n".encode(), str(private))
    done = ps("start", "--dry-run")
    said = done.stdout + done.stderr
    assert done.returncode == 1 and name in said and "remove it" in said, done
    assert (private / "kept").read_text() == f"{ID}\n"


@as_root
def test_nothing_is_written_through_a_link_in_the_state_folder(ps, claude, private):
    declare(row("api"))
    state().mkdir(parents=True)
    (private / "kept").write_text("")
    for kind in ("exit", "screen", "run", "event", "id", "retired"):
        (state() / f"api.{kind}").symlink_to(private / "kept")
    ps("start")
    ps("retire", "api")
    ps("stop", "api")
    assert (private / "kept").read_text() == ""


@as_root
@pytest.mark.parametrize("what", ["state", "link", "runtime", "tmux"])
def test_a_folder_that_somebody_else_made_is_not_used(ps, claude, private, what):
    declare(row("api"))
    log, trap = argv_log(), private / "trap"
    trap.mkdir()
    os.chown(trap, hostile.NOBODY, hostile.NOBODY)
    place = {"runtime": private / "r" / NAME, "tmux": private / "t" / f"tmux-{os.getuid()}"}
    path = place.get(what, state())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(trap)
    if what == "state":
        path.unlink()
        trap.rename(path)
        trap = path
    done = ps("start")
    assert not list(trap.iterdir()), list(trap.iterdir())
    if what == "runtime":  # only a better place for a file: the state folder takes it
        assert done.returncode == 0 and launches(log)
    else:
        assert done.returncode == 1 and str(path) in done.stderr
        assert "hint: ls -ld" in done.stderr or "TMUX_TMPDIR" in done.stderr


@as_root
def test_a_record_that_is_hidden_from_us_may_be_the_conversations(private, home):
    """Run as a user of its own: nothing is hidden from root."""
    python = "/usr/bin/python3"
    if not os.access(python, os.X_OK):
        pytest.skip(f"{support.ABSENT}{python}")
    declare(row("api"))
    file_id("api", ID)
    transcript(ID)
    (claude_folder() / "sessions").mkdir()
    (private / "program.py").write_bytes(Path(support.SESSIONS).read_bytes())
    (private / "program.py").chmod(0o644)
    private.chmod(0o711)
    for top, _, names in (*os.walk(home), *os.walk(private / "t")):
        for name in (".", *names):
            os.chown(os.path.join(top, name), hostile.NOBODY, hostile.NOBODY)
    sleeper = subprocess.Popen(["sleep", "60"], user=hostile.NOBODY)
    hidden = claude_folder() / "sessions" / f"{sleeper.pid}.json"
    hidden.write_text("{}")
    hidden.chmod(0)
    argv = [python, "-IS", str(private / "program.py"), "start", "--dry-run"]
    done = subprocess.run(argv, user=hostile.NOBODY, group=hostile.NOBODY, extra_groups=[],
                          cwd=home, capture_output=True, text=True)  # fmt: skip
    sleeper.kill()
    sleeper.wait()
    assert "api: UNKNOWN" in done.stdout and hidden.name in done.stdout, done


def test_a_session_id_that_turns_a_line_is_shown_without_that(adopt):
    for name in ("tasks", "projects"):
        (claude_folder() / name).mkdir(parents=True)
    done = adopt("status", env={"CLAUDE_CODE_SESSION_ID": "\u202ex"})
    assert done.returncode == 0 and not raw_controls(done.stdout)
