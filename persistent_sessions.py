#!/usr/bin/python3 -IS
"""Keep agent sessions: each comes back after a crash and at boot, in its own conversation.

One file, Python's standard library only, copied unchanged to any Linux box.  Every
command reads the world once, plans (no I/O), acts on each decision, reports, and
answers with an exit status; `list` prints the plan that `start` carries out.

Owned:  $XDG_STATE_HOME/persistent-sessions   manifest, registry and, for each session,
        .id .run .event .exit .health .retired .screen; `ledger/` for hosted launches
        $XDG_CONFIG_HOME/persistent-sessions  config.json, settings.NAME.json, bin/
Read:   Claude's sessions/, projects/ and .claude.json (there only a trust flag is written)
Status: 0 all is well, 1 something needs a person, 2 usage, 130 interrupted; `host` and
        `run` answer with their command's own status, or 75, 125, 126, 127, 128+signal.

The crash rule: a session is ended for good only when its own SessionEnd event says that
a person left at the prompt, its status was 0, no HUP or TERM was seen and nothing was
shutting down.  Everything else comes back.  When in doubt nothing is launched: two
writers on one conversation are worse than five minutes of waiting.

Editors: hook, run, start and status are started often, so the top of this file imports
only what they need (no typing, json, re, signal: each costs more than their work).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import _thread
    import argparse
    import ast
    import signal
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from typing import NamedTuple, NoReturn
else:
    import _signal as signal  # the signal module builds enums, which costs 4 ms
    from _collections import _tuplegetter  # what collections.namedtuple reads its fields with

    class Record_(type):
        """Turn the annotations of a class into its fields, before the class exists."""

        def __new__(mcs, name, bases, members):
            fields = tuple(members.get("__annotations__", ()))
            members["_defaults"] = {f: members[f] for f in fields if f in members}
            members.update((f, _tuplegetter(at, "")) for at, f in enumerate(fields))
            return type.__new__(mcs, name, bases, {**members, "_fields": fields})

    class NamedTuple(tuple, metaclass=Record_):
        """Do at run time what typing.NamedTuple does, without importing typing."""

        def __new__(cls, *args, **named):
            if not named and len(args) == len(cls._fields):
                return tuple.__new__(cls, args)
            if len(args) < len(cls._fields):
                try:
                    rest = cls._fields[len(args) :]
                    args += tuple(named.pop(f) if f in named else cls._defaults[f] for f in rest)
                except KeyError as e:
                    raise TypeError(f"{cls.__name__} needs {e}") from None
            if named or len(args) != len(cls._fields):
                raise TypeError(f"{cls.__name__} takes {cls._fields}, not {tuple(named)}")
            return tuple.__new__(cls, args)

        def _replace(self, **named):
            values = [named.pop(f, v) for f, v in zip(self._fields, self)]
            return type(self)(*values, **named)

        def __repr__(self) -> str:
            pairs = ", ".join(f"{f}={v!r}" for f, v in zip(self._fields, self))
            return f"{type(self).__name__}({pairs})"


PROG = "persistent-sessions"
OWN_NAMES = (PROG, "persistent_sessions.py", f"{PROG}-shim")  # files that are this program
VERSION = "1.0.0"
USUAL_PYTHON = "/usr/bin/python3"  # the one that our first line names

# Commands that start often or wait for long, and what carries each out.
PARTS = {
    "start": "cmd_start",
    "run": "cmd_run",
    "hook": "cmd_hook",
    "status": "cmd_status_line",
    "host": "cmd_host",
    "_pane": "cmd_pane",
}

OK, TROUBLE, USAGE = 0, 1, 2
NO_ROOM, BROKEN, NOT_EXECUTABLE, NOT_FOUND = 75, 125, 126, 127  # as timeout(1) and env(1)

# Verdicts of the plan.
LIVE, LAUNCH, BLOCKED, HELD = "LIVE", "LAUNCH", "BLOCKED", "HELD"
FOREIGN, GONE, UNKNOWN, RESTING, RETIRED = "FOREIGN", "GONE", "UNKNOWN", "RESTING", "RETIRED"
FINE = frozenset((LIVE, LAUNCH, RETIRED))
GOOD, WARN, FAIL = "ok", "warn", "fail"  # how a check of `doctor` came out

RUN_TIMEOUT = 30.0  # seconds any helper program may take
GIT_TIMEOUT = 20.0  # seconds; a clone on a dead network disk must not hold a boot
FETCH_TIMEOUT = 60.0
NOTIFY_TIMEOUT = 10.0
LINE_MAX = 1 << 25  # bytes of one record in a transcript; images are in them
MANAGER_TIMEOUT = 3.0  # systemctl answered in 5-50 ms, also during a shutdown
TMUX_TIMEOUT = 5.0  # it answers in milliseconds, or one that is stopped holds up all others
LOCK_WAIT = 30.0
RUN_LOCK_WAIT = 1.0  # the supervisor must not delay a shutdown
HUP_GRACE, TERM_GRACE = 10.0, 5.0  # seconds from HUP to TERM, from TERM to KILL
HOSTED_GRACES = (4.0, 2.0)  # the same for a hosted command
LOST_GRACE = 2.0  # seconds a pane has to publish its receipt after its server is gone
PANE_GRACE = 5.0  # seconds a pane has to come that has claimed a job nobody answered for
SCREEN_WAIT = 1.0  # seconds a stopped screen may hold up the data it shows a copy of
SCOPE_STOP = 5.0  # seconds from TERM and HUP to KILL when a launch's scope is stopped
LOOK_PAUSE = 30.0  # seconds at most between two looks for a first trace of a session's claude
SETTLE = 0.5  # seconds a signal may still be on its way when no SessionEnd event was seen
WAVE = 2.0  # seconds a wave may hold up the next one
HOOK_STDIN_WAIT = 2.0
FAILURE_WINDOW = 60.0  # seconds: an end by itself this soon is a failed launch
BRAKES = (300, 600, 1200, 2400, 3600)  # seconds of rest after 1, 2, 3 ... failures in a row
HEALTHY_AFTER = 3600.0  # seconds up that forget earlier failures
STORM, STORM_WINDOW = 3, 10.0  # sessions of one run dead within so many seconds
MAX_IDS = 20
JOURNAL_LINES, LOG_LINES = 20000, 50  # `logs` reads so many lines of the unit, prints so many
NAME_BYTES = 64
PANE_SIZE = ("200", "50")
READABLE = (40, 10)  # columns and lines below which a screen is not judged

# tmux exits 1 for every failure, so only its words tell them apart (seen: 3.3a).
NO_SERVER = ("no server running", "No such file or directory")
SERVER_EXITING = ("server exited unexpectedly", "lost server")
EMPTY_SERVER = "no current target"  # it lives without a session: exit-empty off (3.3a to 3.8)
MADE_FIRST = "was made as the server started, by ~/.tmux.conf"
UNKEPT = " (exit-unattached in ~/.tmux.conf, for one, ends a server that nobody looks at)"
SHUTTING_DOWN = "the machine or the user manager is shutting down: nothing is launched"
MARK = "@persistent_sessions"  # a session option: this session was made by us
PANE_FIELDS = (
    "session_name session_group pane_id pane_pid pane_dead pane_width pane_height "
    f"session_created ?{MARK},1,"  # its value is anybody's text
).split()
PANE_FORMAT = "\t".join(f"#{{{field}}}" for field in PANE_FIELDS)
SAFE_PUNCTUATION = "_-+@,"  # and letters and digits of any script; others change in tmux
BAD_FIRST = "-.$%@="  # options, and tmux's own ids
INVISIBLE = "\u00a0\u00ad\u200b\u200c\u200d\u200e\u200f\u202f\u3000"  # no control characters

# What a running Claude Code 2.1.332 puts into the environment of its children.
AGENT_MARKERS = frozenset(
    """AI_AGENT CLAUDECODE CLAUDE_CODE_CHILD_SESSION CLAUDE_CODE_SESSION_ID CLAUDE_PID
    CLAUDE_CODE_ENTRYPOINT CLAUDE_ENV_FILE CLAUDE_PROJECT_DIR CLAUDE_CODE_SESSION_ATTENDED
    CLAUDE_CODE_MESSAGING_SOCKET CLAUDE_CODE_MESSAGING_TOKEN CLAUDE_JOB_DIR
    CLAUDE_CODE_CHILD_NOTES_DIR CLAUDE_CODE_HOST_SHORT_TEMP_DIRS CLAUDE_BG_SESSION_CREDENTIAL
    """.split()
)
UNIT_MARKERS = frozenset(
    """INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET LISTEN_FDS LISTEN_PID LISTEN_FDNAMES
    SYSTEMD_EXEC_PID MANAGERPID MAINPID PS_UNIT""".split()
)
TERMINAL_OWN = frozenset(("TMUX", "TMUX_PANE", "TERM", "COLUMNS", "LINES"))  # tmux decides
CONSENT_ENV = "CLAUDE_CODE_ENABLE_TODO_TOOLS"  # without it current models have no task list
HEX = frozenset("0123456789abcdef")
# Signals that a program brings on itself; the others come from somebody else.
CONVERSATION = frozenset(("user", "assistant", "system", "attachment"))  # see is_conversation
SELF_SIGNALS = frozenset((4, 5, 6, 7, 8, 11, 31))  # ILL TRAP ABRT BUS FPE SEGV SYS, signal(7)

# States of a hosted launch, and what a ledger record is made of.
RUNNING, DETACHED, ENDED, LOST = "RUNNING", "DETACHED-ALIVE", "ENDED", "LOST"
LAUNCH_KEYS = (
    "id name argv cwd started boot callerPid callerStart parent direct mux tmuxSession "
    "tmuxSocket unit panePid paneStart ended status"
).split()
ID_LENGTH = 12  # hexadecimal digits of a ledger id
ENDED_SHOWN = 10  # ended launches in the table of `list`; --json has all
BY_A_PERSON = "a person's own launch"
PANE_TERMS = ("tmux-256color", "screen-256color", "screen")
TERMINFO = ("/usr/share/terminfo", "/lib/terminfo", "/etc/terminfo", "/usr/lib/terminfo")

UNIT, TIMER = f"{PROG}.service", f"{PROG}.timer"
BEGIN, END = f"# >>> {PROG}", f"# <<< {PROG}"  # around our lines in a shell's rc file


# ---- Errors ---------------------------------------------------------------


class Failure(Exception):
    """An expected failure, shown as one line; `hint` adds the command that helps."""

    def __init__(self, message: str, *, hint: str = "", status: int = TROUBLE) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


class ToolError(Failure):
    """A program that answered with a failure of its own."""

    def __init__(self, label: str, status: int, stderr: str) -> None:
        why = " ".join(stderr.split()) or f"exit status {status}"
        super().__init__(f"{label}: {why}")
        self.stderr = stderr


class NoAnswer(Failure):
    """A program that said nothing for as long as it was waited for."""


# ---- Values ---------------------------------------------------------------


class Spec(NamedTuple):
    """One session that should exist: a manifest row or a registry row."""

    name: str
    directory: str
    issue: str = ""
    pin: str = ""
    user: str = ""
    declared: bool = False
    args: tuple[str, ...] = ()  # a registry row: what claude was opened with
    renamed: str = ""  # a registry row: the name it was launched under


class Config(NamedTuple):
    """config.json, flattened; `parse_config` knows the defaults."""

    clone: str
    ref: str
    path: str
    file: str
    fetch: bool | None
    claude: str
    remote_control: bool
    start_args: tuple[str, ...]
    open_args: tuple[str, ...]
    socket: str
    network_wait: float
    parallel: int
    verify: float
    trust_open: bool
    max_sessions: int
    keep_days: float
    detach_key: str
    notify: tuple[str, ...]
    bare: bool = False  # config.json is broken: no argument is passed that it might forbid


def claude_home(environ: Mapping[str, str]) -> str:
    """Return Claude's folder: CLAUDE_CONFIG_DIR, else ~/.claude."""
    # Same in task_adopt.py; tests/test_rules.py compares them.
    return environ.get("CLAUDE_CONFIG_DIR") or os.path.join(environ.get("HOME", ""), ".claude")


def runtime_folder(environ: Mapping[str, str]) -> str:
    """Return the user's runtime folder, also where sudo or cron lost its variable; "" for none."""
    for path in (environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"):
        try:
            if path and os.stat(path).st_uid == os.getuid():
                return path
        except OSError:
            continue  # of a user's who is gone, or misspelt
    return ""


class Paths(NamedTuple):
    """Every folder the program knows, built once from the environment."""

    home: str
    state: str
    config: str
    runtime: str  # "" where the user has no runtime folder
    claude: str
    trust: str  # Claude's .claude.json

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Paths:
        """Build the paths.  Raises Failure without a HOME."""
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            raise Failure("HOME is not set", hint="export HOME=~")
        state, config = (
            environ[key] if environ.get(key, "").startswith("/") else f"{home}/{usual}"
            for key, usual in (("XDG_STATE_HOME", ".local/state"), ("XDG_CONFIG_HOME", ".config"))
        )  # the XDG specification has a relative path ignored
        claude = os.path.abspath(claude_home(environ))
        beside = claude if environ.get("CLAUDE_CONFIG_DIR") else home
        return cls(
            home,
            f"{state}/{PROG}",
            f"{config}/{PROG}",
            runtime_folder(environ),
            claude,
            f"{beside}/.claude.json",
        )

    def of(self, name: str, kind: str) -> str:
        """Return the state file of a session: kind is id, run, event, exit, ..."""
        return f"{self.state}/{name}.{kind}"


class Record(NamedTuple):
    """One of Claude's own sessions/<pid>.json."""

    pid: int
    session_id: str
    directory: str
    start: str  # field 22 of /proc/<pid>/stat
    kind: str
    entrypoint: str
    tmux: str  # the tmux session's name when Claude started
    status: str
    url: str
    parked: str = ""  # the background job its conversation moved to
    seen: float = 0.0  # the file's mtime, seconds
    alive: bool = False

    @property
    def visible(self) -> bool:
        """Tell whether a person sees this session: not -p, not a background job."""
        return self.kind == "interactive" and self.entrypoint in ("cli", "")


class Pane(NamedTuple):
    """A tmux pane, as often as sessions show it."""

    session: str
    group: str
    pane_id: str
    pid: int
    dead: bool
    width: int
    height: int
    created: int
    ours: bool
    socket: str = ""

    @property
    def key(self) -> str:
        """Return what names this pane among all servers."""
        return f"{self.socket} {self.pane_id}"


class Supervisor(NamedTuple):
    """A .run file: who started a session and who runs it now."""

    boot: str
    pid: int
    start: str
    claude: int
    claude_start: str
    pane: str
    socket: str
    resume: str
    at: float
    claude_home: str = ""  # where its claude keeps its conversations


class Event(NamedTuple):
    """A .event file: the last hook event of a session."""

    event: str
    session_id: str
    why: str  # SessionStart's source or SessionEnd's reason
    at: float
    pid: int
    name: str  # the session's tmux name at that moment

    def is_of(self, run: Supervisor) -> bool:
        """Tell whether it was fired in a run; the clock may have been set back since that began."""
        return self.at >= run.at or self.pid == run.claude > 0


class Ending(NamedTuple):
    """How a session's claude ended; status and signal are kept apart."""

    status: int  # exit status, 0 when killed by a signal
    killed: int  # the signal that killed it, or 0
    signalled: str  # HUP or TERM when that reached us from outside
    system: str  # the system manager's state in its own word
    user: str
    scope: str
    reason: str | None  # SessionEnd's reason; None: no such event in this run
    started: bool  # a SessionStart event was seen in this run
    recorded: bool  # Claude's own record of the child was seen in this run

    @property
    def rc(self) -> int:
        """Return the shell's form of the status, 0 to 255."""
        return 128 + self.killed if self.killed else self.status

    @property
    def outside(self) -> bool:
        """Tell whether something other than the session itself brought the end."""
        return bool(self.signalled) or self.stopping

    @property
    def stopping(self) -> bool:
        """Tell whether a shutdown, a logout or a stop of the scope was under way."""
        return "stopping" in (self.system, self.user) or self.scope == "deactivating"

    @property
    def by_itself(self) -> bool:
        """Tell whether it failed on its own: neither a signal, a shutdown nor a person ended it.

        Claude answers a TERM with status 143, a HUP with 129 and an INT with 0 (2.1.332).
        """
        if self.outside or self.deliberate:
            return False
        if self.killed:
            return self.killed in SELF_SIGNALS
        if self.status in (128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM):
            return False
        return self.status != 0 or self.reason != "other"

    @property
    def deliberate(self) -> bool:
        """Tell whether a person ended it: the one question that retires a session."""
        if self.rc or self.outside:
            return False
        if self.reason is not None:
            return self.reason == "prompt_input_exit"
        return self.recorded and not self.started


class Health(NamedTuple):
    """A .health file: failures in a row, and what a person was last told."""

    failures: int = 0
    last: float = 0.0
    notified: str = ""


class Screen(NamedTuple):
    """What a pane shows: a prompt that holds it, or a question to its person."""

    label: str
    blocks: bool
    consent: bool = False


class Facts(NamedTuple):
    """What was read about one session besides tmux."""

    ids: tuple[str, ...] = ()
    ids_at: float = 0.0
    run: Supervisor | None = None
    run_live: bool = False
    event: Event | None = None
    health: Health = Health()
    retired: bool = False
    folder: str = "ok"  # ok, gone, or why it cannot be judged
    trouble: str = ""  # a state file that could not be read


class World(NamedTuple):
    """One snapshot: everything that the plan may look at."""

    specs: tuple[Spec, ...]
    left: tuple[Spec, ...] = ()  # no row names them: they were ended on purpose, or live on
    facts: Mapping[str, Facts] = {}
    panes: tuple[Pane, ...] = ()
    by_pid: Mapping[int, Sequence[Pane]] = {}  # those that are not dead
    screens: Mapping[str, Screen] = {}  # by the pane's key
    claudes: frozenset[str] = frozenset()  # keys of panes with a claude but no supervisor
    records: tuple[Record, ...] = ()
    transcripts: Mapping[str, bool] = {}  # conversation id: it can be resumed
    moved: Mapping[str, str] = {}  # conversation id: the one that goes on with it
    jobs: Mapping[str, str] = {}  # conversation id: Claude's background job that keeps it
    blind: str = ""  # why tmux could not be asked
    no_projects: str = ""  # why transcripts could not be looked up
    unclear: str = ""  # a record of a live process that could not be read
    now: float = 0.0
    insist: frozenset[str] = frozenset()  # named by the person: tried at once
    unreadable: Mapping[str, str] = {}  # conversation id: why its transcript could not be read
    hidden: frozenset[int] = frozenset()  # supervisors with a terminal that no server shows


class Decision(NamedTuple):
    """One line of the plan: row of `list`, line of the journal, order to `start`."""

    spec: Spec
    verdict: str
    resume: str = ""
    why: str = ""
    hint: str = ""
    pane: str = ""
    pid: int = 0


class Outcome(NamedTuple):
    """What came of a decision."""

    decision: Decision
    ok: bool
    why: str
    url: str = ""


class Job(NamedTuple):
    """What a pane is to run."""

    argv: tuple[str, ...]
    directory: str
    env: Mapping[str, str]
    program: str = ""  # the file to execute where it is not looked up as argv[0]


class Order(NamedTuple):
    """One call of `host`, or of a shim."""

    argv: tuple[str, ...]
    program: str  # "" where there is none
    name: str = ""
    pane_stdio: bool = False


class Launch(NamedTuple):
    """A ledger record: one launch by `host`, hosted or executed directly."""

    id: str
    name: str = ""
    argv: tuple[str, ...] = ()
    directory: str = ""
    started: float = 0.0
    boot: str = ""
    caller: int = 0
    caller_start: str = ""
    parent: str = ""  # the ledger id of the launch in which this one was made
    direct: str = ""  # why it was executed directly; then the caller became the command
    mux: str = ""  # "tmux" once a tmux session shows it
    session: str = ""
    socket: str = ""
    unit: str = ""
    pane: int = 0
    pane_start: str = ""
    ended: float = 0.0
    status: int = -1  # the receipt's; -1: none yet


class Hosted(NamedTuple):
    """A launch as `list` shows it."""

    entry: Launch
    state: str
    trouble: str = ""  # why its tmux cannot show it

    @property
    def alive(self) -> bool:
        """Tell whether its command runs."""
        return self.state in (RUNNING, DETACHED)


class Check(NamedTuple):
    """One line of `doctor`."""

    name: str
    state: str  # GOOD, WARN or FAIL
    text: str
    mend: str = ""  # the command that mends it


class Done(NamedTuple):
    """A program that has ended."""

    status: int  # -N: killed by signal N
    stdout: str
    stderr: str


# ---- Parsing --------------------------------------------------------------


def is_session_id(text: str) -> bool:
    """Tell whether `text` is a lower-case UUID, the only form Claude gives a conversation."""
    # Same in task_adopt.py; tests/test_rules.py compares them.
    parts = text.split("-")
    return [len(p) for p in parts] == [8, 4, 4, 4, 12] and not set("".join(parts)) - HEX


def classify_name(name: str) -> str:
    """Return why `name` cannot be a session's name, or "" when it can.

    tmux keeps these names unchanged (seen: 3.3a) and they are safe as file names.
    """
    if not name:
        return "an empty name"
    if name[0] in BAD_FIRST:
        return f"a name must not start with {name[0]!r}"
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES:
        return f"a name of more than {NAME_BYTES} bytes"
    for char in name:
        if not char.isalnum() and char not in SAFE_PUNCTUATION:
            return f"a name must not hold {char!r}"
    return ""


def is_word(value: object) -> bool:
    """Tell whether `value` can be a word of a command line or a file's name."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False  # half a character, which only JSON can spell


class JsonScanner:
    """The options that json.loads gives its scanner (CPython 3.9 to 3.14)."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: Mapping[str, str] = {}


def parse_json(text: str) -> object:
    """Return the value of a JSON text.  Raises ValueError.

    Uses the scanner behind json.loads directly: importing json costs a hook more
    than its work.  Anything unusual is left to json.loads, for the same verdict.
    """
    text = text.lstrip("\ufeff")
    try:
        from _json import make_scanner

        scanner = make_scanner(JsonScanner)  # type: ignore[arg-type]
        value, end = scanner(text, len(text) - len(text.lstrip(" \t\r\n")))
        if not text[end:].strip(" \t\r\n"):
            return value
    except (ImportError, StopIteration, ValueError, AttributeError, RecursionError, SystemError):
        pass  # json.loads decides and words the error; without json the scanner cannot (3.11)
    import json

    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def parse_object(text: str) -> dict[str, object]:
    """Return a JSON object.  Raises ValueError for anything else."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def parse_list(text: str) -> list[object]:
    """Return a JSON list.  Raises ValueError for anything else."""
    value = parse_json(text)
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def parse_pairs(text: str) -> dict[str, str]:
    """Return the key=value lines of a state file; a damaged file gives an empty answer."""
    if "\0" in text:
        return {}
    lines = (line.rstrip("\r").partition("=") for line in text.lstrip("\ufeff").split("\n"))
    return {key: value for key, equals, value in lines if equals}


def parse_number(text: str | None) -> float:
    """Return a number from a state file, or 0.0 where there is none."""
    try:
        value = float(text or 0)
    except ValueError:
        return 0.0
    return value if abs(value) < 1e15 else 0.0


def parse_supervisor(text: str) -> Supervisor | None:
    """Return a .run file's content, or None when it names no process."""
    pairs = parse_pairs(text)
    pid, claude = (int(parse_number(pairs.get(key))) for key in ("pid", "claude"))
    if pid <= 0 or not pairs.get("start"):
        return None
    resume = pairs.get("resume", "")
    return Supervisor(
        pairs.get("boot", ""),
        pid,
        pairs["start"],
        max(claude, 0),
        pairs.get("claude_start", ""),
        pairs.get("pane", ""),
        pairs.get("socket", ""),
        resume if is_session_id(resume) else "",
        parse_number(pairs.get("at")),
        pairs.get("claude_home", ""),
    )


def parse_event(text: str) -> Event | None:
    """Return a .event file's content, or None when there is none in it."""
    pairs = parse_pairs(text)
    if not pairs.get("event"):
        return None
    return Event(
        pairs["event"],
        pairs.get("id", ""),
        pairs.get("why", ""),
        parse_number(pairs.get("at")),
        int(parse_number(pairs.get("pid"))),
        "" if classify_name(pairs.get("name", "")) else pairs["name"],
    )


def parse_health(text: str) -> Health:
    """Return a .health file's content; a damaged one forgets."""
    pairs = parse_pairs(text)
    failures = int(parse_number(pairs.get("failures")))
    return Health(max(failures, 0), parse_number(pairs.get("last")), pairs.get("notified", ""))


def parse_ids(text: str) -> tuple[str, ...]:
    """Return the conversation ids of a .id file, newest first; damaged lines are left out."""
    seen = [line.strip("\ufeff \t") for line in text.replace("\0", "\n").splitlines()]
    return tuple(dict.fromkeys(i for i in seen if is_session_id(i)))


def classify_directory(directory: str) -> str:
    """Return why a directory cannot stand in a row, or ""."""
    if not directory.startswith("/"):
        return "the directory must be absolute (~ and $HOME are not expanded)"
    if directory != directory.strip():
        return "the directory's name ends in a space, which a row does not keep"
    odd = [c for c in directory if not c.isprintable() and c not in INVISIBLE]
    if any("\udc80" <= c <= "\udcff" for c in odd):
        return "the directory's name is not UTF-8"
    return "the directory's name holds control characters or others not to be seen" if odd else ""


def classify_row(name: str, directory: str, fields: int) -> str:
    """Return why a TSV row cannot be used, or ""."""
    if fields < 2:
        return "expected NAME<TAB>/DIRECTORY"
    if classify_name(name):
        return classify_name(name)
    return classify_directory(directory)


def parse_args(text: str) -> tuple[str, ...]:
    """Return the arguments a registry row was opened with; what is no JSON list is none."""
    if not text.startswith("["):
        return ()
    try:
        return tuple(str(a) for a in parse_list(text) if is_word(a))
    except ValueError:
        return ()


def parse_rows(
    text: str, *, declared: bool, mine: Callable[[Spec], bool] = bool
) -> tuple[tuple[Spec, ...], tuple[str, ...]]:
    """Return the good rows of a manifest or registry, and one complaint a bad row.

    Both are TSV: name, directory, then for a manifest plan issue, pinned conversation
    and unix user; for the registry claude's arguments (JSON) and the earlier name.
    Of two rows with one name the first counts; those that are not `mine` have names of their own.
    """
    specs: dict[str, Spec] = {}
    bad: list[str] = []
    kind = "manifest" if declared else "registry"
    for number, line in enumerate(text.lstrip("\ufeff").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = ["" if f.strip() == "-" else f.strip() for f in line.split("\t")]
        name, directory, third, fourth, user = (fields + [""] * 4)[:5]
        why = classify_row(name, directory, len(fields))
        if not why and fourth and declared and not is_session_id(fourth):
            why = "the pinned conversation must be an id, in lower case"
        elif not why and fourth and not declared:
            why = classify_name(fourth)
        if declared:
            spec = Spec(name, directory, third, fourth, user, True)
        else:
            renamed = fourth if fourth != name else ""  # it would be its own heir, and never back
            spec = Spec(name, directory, args=parse_args(third), renamed=renamed)
        if (spec.user or not why) and not mine(spec):
            continue  # what is wrong with another user's row is that user's business
        if not why and name in specs:
            why = "an earlier line has this name"
        if why:
            bad.append(f"{kind} line {number}: {why}: {line.strip()[:80]!r}")
        else:
            specs[name] = spec
    return tuple(specs.values()), tuple(bad)


# Every key of config.json: its type and default.  A value of another type is an error.
CONFIG_KEYS: Mapping[str, tuple[str, object]] = {
    "manifest.clone": ("path from /", ""),
    "manifest.ref": ("text", "refs/remotes/origin/main"),
    "manifest.path": ("text", f"{PROG}.tsv"),
    "manifest.file": ("path from /", ""),
    "manifest.fetch": ("flag", None),
    "claude.path": ("path from /", ""),
    "claude.remote_control": ("flag", True),
    "claude.start_args": ("list", ("--dangerously-skip-permissions",)),
    "claude.open_args": ("list", ()),
    "tmux.socket": ("path from /", ""),
    "network.wait_s": ("number", 60.0),
    "launch.parallel": ("number", 0.0),
    "launch.verify_s": ("number", 30.0),
    "trust.open": ("flag", True),
    "host.max_sessions": ("number", 0.0),
    "host.keep_days": ("number", 14.0),
    "host.detach_key": ("text", "C-]"),
    "notify.command": ("list", ()),
}
CONFIG_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "path from /": (str,),  # another one is a different file in each folder; ~ is not expanded
    "flag": (bool,),
    "number": (int, float),
    "list": (list,),
}

# Words that choose a conversation, which is ours to do, and whether a value may follow: Claude
# 2.1.332 with --continue takes the folder's newest one, live or not, whatever --resume names.
CHOOSERS = {"--continue": 0, "-c": 0, "--resume": 1, "-r": 1, "--session-id": 1, "--from-pr": 1}


def choose_own_args(words: Sequence[str]) -> tuple[str, ...]:
    """Return a claude's arguments without those that choose its conversation."""
    kept: list[str] = []
    value = False
    for word in words:
        flag, equals, _ = word.partition("=")
        its, value = value and word[:1] != "-", False
        if flag in CHOOSERS:
            value = bool(CHOOSERS[flag]) and not equals
        elif not its:
            kept.append(word)
    return tuple(kept)


def parse_config(text: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return config.json as {"group.key": value} and a warning for what does not count.

    Raises Failure for what does not parse and for a value of a wrong type.
    """
    try:
        groups = parse_object(text)
    except ValueError as e:
        raise Failure(f"config.json: {e}") from None
    values: dict[str, object] = {}
    unknown: list[str] = []
    for group, members in groups.items():
        if not isinstance(members, dict):
            raise Failure(f"config.json: {group!r} must be an object")
        for key, value in members.items():
            name = f"{group}.{key}"
            if name not in CONFIG_KEYS:
                unknown.append(f"config.json: unknown key {name!r}")
                continue
            kind = CONFIG_KEYS[name][0]
            good = isinstance(value, CONFIG_TYPES[kind])
            if kind == "number":
                good = good and not isinstance(value, bool) and 0 <= float(str(value)) < 1e9
            if kind == "path from /":
                good = good and str(value)[:1] in ("", "/")
            if kind == "list" and isinstance(value, list):
                good = all(map(is_word, value))
                value = tuple(value)
                if good and name != "notify.command" and choose_own_args(value) != value:
                    why = "what chooses a conversation is left out"
                    unknown.append(f"config.json: {name!r}: {why}")
            if not good or (isinstance(value, str) and not is_word(value)):
                raise Failure(f"config.json: {name!r} must be a {kind}, not {repr(value)[:80]}")
            values[name] = value
    return values, tuple(unknown)


def choose_config(values: Mapping[str, object]) -> Config:
    """Return the whole configuration: `values` over the defaults."""
    whole = {name: values.get(name, default) for name, (_, default) in CONFIG_KEYS.items()}
    return Config(*whole.values())  # type: ignore[arg-type]


def parse_record(text: str) -> Record:
    """Return one of Claude's session records.  Raises ValueError for half of one.

    Source: ~/.claude/sessions/<pid>.json of Claude Code 2.1.332, rewritten in place;
    `tmux` is "<session>:@<window>.%<pane>" as it was at Claude's start.
    """
    value = parse_object(text)
    pid, session_id, start = (value.get(key) for key in ("pid", "sessionId", "procStart"))
    if not isinstance(pid, int) or not 0 < pid < 1 << 31:
        raise ValueError("no pid")
    if not isinstance(session_id, str) or not is_session_id(session_id):
        raise ValueError("no sessionId")

    def word(key: str) -> str:
        found = value.get(key)
        return str(found) if is_word(found) else ""

    url = word("bridgeUrl") or word("url")
    return Record(
        pid,
        session_id,
        word("cwd"),
        str(start) if isinstance(start, int) else word("procStart"),
        word("kind"),
        word("entrypoint"),
        word("tmux").rpartition(":@")[0],
        word("status"),
        url if url.startswith("https://") else "",
        word("parkedJobId"),
    )


def parse_panes(text: str, socket: str) -> tuple[Pane, ...]:
    """Return the panes of one list-panes answer.  Raises Failure for one it cannot read."""
    panes = []
    for line in filter(None, text.split("\n")):  # a name may hold what splitlines splits at
        values = dict(zip(PANE_FIELDS, line.split("\t")))
        try:
            panes.append(
                Pane(
                    values["session_name"],
                    values["session_group"],
                    values["pane_id"],
                    int(values["pane_pid"] or 0),
                    values["pane_dead"] == "1",
                    int(values["pane_width"]),
                    int(values["pane_height"]),
                    int(values["session_created"] or 0),
                    bool(values[PANE_FIELDS[-1]]),
                    socket,
                )
            )
        except (KeyError, ValueError):
            raise Failure(f"tmux: unexpected answer {line[:80]!r}") from None
    return tuple(panes)


def parse_duplicates(complaint: str) -> set[str]:
    """Return the names of sessions that tmux did not make because they were there."""
    return {rest.split()[0] for rest in complaint.split("duplicate session: ")[1:]}


def parse_screens(token: str, pane_ids: Sequence[str], text: str) -> dict[str, str]:
    """Return what each pane shows from an answer to `screens_input`; one that went is left out.

    capture-pane prints as many lines as its pane is high (3.3a).  Raises Failure where the
    lines are not as many.
    """
    shown, *rows = text.split(f"{token} ")
    whole = (row.partition("\n") for row in rows if "\n" in row)  # a hook may print behind one
    heights = dict(row.split() for row, _, _ in whole)
    lines, at, found = shown.split("\n"), 0, {}
    for pane_id in pane_ids:
        if pane_id in heights:
            end = at + int(heights[pane_id])
            found[pane_id], at = "\n".join(lines[at:end]), end
    if not rows or at != len(lines) - 1:
        raise Failure("tmux: no whole answer")
    return found


def parse_stat(text: str) -> tuple[str, int, int, int, str]:
    """Return state, parent, group, terminal's foreground group, start of /proc/<pid>/stat.

    The name in parentheses may hold anything, so fields count from the last one.
    Source: proc_pid_stat(5), fields 3, 4, 5, 8, 22.
    """
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[2]), int(fields[5]), fields[19]


def parse_retired(name: str, text: str) -> Spec:
    """Return the whole row that a .retired file keeps; an empty one names no directory."""
    pairs = parse_pairs(text)
    directory, pin, renamed = (pairs.get(key, "") for key in ("directory", "pin", "renamed"))
    return Spec(
        name,
        "" if classify_directory(directory) else directory,
        pairs.get("issue", ""),
        pin if is_session_id(pin) else "",
        pairs.get("user", ""),
        pairs.get("declared") == "yes",
        parse_args(pairs.get("args", "")),
        "" if classify_name(renamed) else renamed,
    )


def parse_deliberate(text: str) -> bool:
    """Tell whether an .exit file speaks of a deliberate end; older ones have no word for it."""
    pairs = dict(word.partition("=")[::2] for word in text.split())
    by_itself = pairs.get("rc") == "0" and pairs.get("signalled") in ("0", "-")
    up = "stopping" not in (pairs.get("system"), pairs.get("user"))
    return pairs.get("deliberate", "yes" if by_itself and up else "no") == "yes"


def parse_receipt(text: str) -> int:
    """Return the status in a receipt, 0 to 255.  Raises Failure for anything else."""
    word = text.strip(" \n")
    if not word.isascii() or not word.isdigit() or len(word) > 3 or int(word) > 255:
        raise Failure(f"malformed receipt: {text[:20]!r}")
    return int(word)


def parse_version(text: str) -> tuple[int, int]:
    """Return the first N.N in a program's answer to --version, (0, 0) where there is none."""
    import re

    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parse_span(text: str) -> float:
    """Return the seconds of a time span as systemctl prints it (systemd.time(7)), 0.0 for none."""
    units = {"y": 31557600.0, "month": 2629800.0, "w": 604800.0, "d": 86400.0}
    units.update({"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 0.001})
    seconds = 0.0
    for word in text.split():
        unit = word.lstrip("0123456789.")
        seconds += parse_number(word[: len(word) - len(unit)]) * units.get(unit, 0.0)
    return seconds


def parse_dropin(text: str) -> dict[str, str]:
    """Return the variables of a drop-in that `format_dropin` wrote."""
    env = {}
    for line in text.splitlines():
        if line.startswith('Environment="') and line.endswith('"'):
            key, _, value = line[13:-1].partition("=")
            value = value.replace("%%", "%").replace('\\"', '"').replace("\\\\", "\\")
            env[key] = value
    return env


def parse_launch(text: str) -> Launch | None:
    """Return a ledger record, or None for a torn one."""
    try:
        value = parse_object(text)
    except ValueError:
        return None
    mux = value.get("mux")
    value["mux"] = mux.get("kind") if isinstance(mux, dict) else ""
    empty = Launch("")
    fields: list[object] = []
    for key, default in zip(LAUNCH_KEYS, empty):
        found = value.get(key)
        if isinstance(default, (int, float)) and isinstance(found, (int, float)):
            found = type(default)(found) if abs(found) < 1e15 else default  # 1e400, NaN, a pid?
        if isinstance(default, tuple) and isinstance(found, list):
            found = tuple(str(word) for word in found)
        fields.append(found if type(found) is type(default) else default)
    entry = Launch(*fields)  # type: ignore[arg-type]
    return entry if entry.id else None


def parse_host(argv: Sequence[str]) -> tuple[str, bool, tuple[str, ...]]:
    """Return name, whether all is the pane's, and the command of `host`.  Raises Failure."""
    at = argv.index("--") if "--" in argv else len(argv)
    options, command = list(argv[:at]), tuple(argv[at + 1 :])
    name, stdio = "", ""
    while options:
        option, equals, value = options.pop(0).partition("=")
        if not equals and options and option in ("--name", "--stdio"):
            value = options.pop(0)
        name = value if option == "--name" else name
        stdio = value if option == "--stdio" else stdio
        why = "" if option in ("--name", "--stdio") else f"unknown option {option!r}"
        why = why or (classify_name(name) if option == "--name" else "")
        if why or stdio not in ("", "pane"):
            raise Failure(f"host: {why or '--stdio takes only pane'}", status=USAGE)
    if not command:
        hint = f"{PROG} host [--name NAME] [--stdio pane] -- COMMAND ARG..."
        raise Failure("host: no command", hint=hint, status=USAGE)
    return name, stdio == "pane", command


# ---- Deciding -------------------------------------------------------------


def restore_set(manifest: Iterable[Spec], registry: Iterable[Spec]) -> tuple[Spec, ...]:
    """Return the declared rows, then the opened ones that are not declared."""
    rows = {spec.name: spec for spec in registry}
    rows.update({spec.name: spec for spec in manifest})
    declared = [spec for spec in rows.values() if spec.declared]
    return (*declared, *(spec for spec in rows.values() if not spec.declared))


def choose_clashes(manifest: Iterable[Spec], registry: Iterable[Spec]) -> dict[str, str]:
    """Return the declared names under which a session of another folder is open, and that folder.

    To take the row's side would resume that folder's conversation in the row's.
    """
    opened = {spec.name: spec.directory for spec in registry}
    rows = (d for d in manifest if opened.get(d.name, d.directory) != d.directory)
    return {d.name: opened[d.name] for d in rows}


def choose_session(panes: Iterable[Pane], known: Iterable[str]) -> str:
    """Return the name of the session a pane belongs to, although groups and links share it.

    A name of the restore set wins, then the one a group is named after, then the oldest.
    """
    shown = sorted(panes, key=lambda pane: (pane.created, pane.session))
    names = [pane.session for pane in shown]
    ours = set(known).intersection(names)
    for name in names:
        if name in ours:
            return name
    return next((p.session for p in shown if p.session == p.group), names[0] if names else "")


def choose_witnesses(spec: Spec, facts: Facts, records: Iterable[Record]) -> tuple[str, ...]:
    """Return the ids that speak for a session's last conversation, the best first.

    Where the session had our supervisor only the record of its own claude counts, and
    the hook's file wins for that process, unless it never had the record's id (a full disk).
    Without one the newer of file and record wins, and the record must match the folder.
    """
    hooked = facts.ids[:1]
    run, event = facts.run, facts.event
    if run is not None:
        # Equal boots give equal pids and times: what was written before this run is not its own.
        new = [r for r in records if r.seen >= run.at]
        own = [r.session_id for r in new if r.pid == run.claude and r.start == run.claude_start]
        noted = event is not None and event.is_of(run)
        if noted and event is not None and event.name != spec.name:
            hooked = (event.session_id, *hooked)  # it was filed under the name it has in tmux
        fired = facts.ids_at >= run.at or noted
        ids = (*hooked, *own) if fired and {*own} <= {*hooked, *facts.ids} else (*own, *hooked)
    else:
        seen = [
            (r.seen, r.session_id)
            for r in records
            if r.tmux == spec.name and r.visible and r.directory == spec.directory
        ]
        seen += [(facts.ids_at, i) for i in hooked]
        ids = tuple(i for _, i in sorted(seen, reverse=True))
    return tuple(dict.fromkeys(ids))


def choose_filing(
    panes: Sequence[Pane], launched: str, supervised: bool, rows: Mapping[str, Spec]
) -> str:
    """Return the name that a pane's conversation is filed under: its live one where it is its own.

    The session of another row, or one that we did not make, is where its pane was moved to.
    """

    def is_its(pane: Pane) -> bool:
        row = rows.get(pane.session)
        return pane.session == launched or (pane.ours if row is None else row.renamed == launched)

    name = choose_session([p for p in panes if not supervised or is_its(p)], rows)
    return launched if classify_name(name) else name


def choose_successor(session_id: str, moved: Mapping[str, str]) -> str:
    """Return the conversation that goes on with one that moved to the background."""
    for _ in range(len(moved)):
        session_id = moved.get(session_id, session_id)
    return session_id


def choose_resume(spec: Spec, ids: Sequence[str], world: World) -> tuple[str, str]:
    """Return the conversation to resume ("" for a new one) and what to say about it."""
    for session_id in ids:
        if world.transcripts.get(session_id):
            return choose_successor(session_id, world.moved), ""
    if spec.pin and world.transcripts.get(spec.pin):
        return choose_successor(spec.pin, world.moved), "the manifest's pin"
    lost = ids[0] if ids else spec.pin
    if lost:
        return "", f"a new conversation: {lost} has no conversation on disk"
    return "", "a new conversation"


def choose_holder(session_id: str, name: str, world: World) -> tuple[int, str]:
    """Return the process that writes a conversation, and what it is; (0, "") for none."""
    for record in world.records:
        if record.alive and record.session_id == session_id:
            where = f"in tmux session {record.tmux!r}" if record.tmux else "outside tmux"
            return record.pid, "a background job" if record.kind == "bg" else where
    for other, facts in world.facts.items():
        run, event = facts.run, facts.event
        if other == name or run is None or not facts.run_live:
            continue
        current = event.session_id if event is not None and event.is_of(run) else run.resume
        filed = facts.ids[:1] if facts.ids_at >= run.at else ()  # an end may be noted after a start
        if session_id in (current or run.resume, *filed):
            return run.pid, f"session {other!r}"
    return 0, ""


def choose_rest(health: Health, run: Supervisor | None, now: float) -> float:
    """Return when a session that keeps failing is tried again; 0.0 for now.

    What began after the last failure, by hand, did not fail.
    """
    if not health.failures or now < health.last or (run is not None and run.at > health.last):
        return 0.0
    until = health.last + BRAKES[min(health.failures, len(BRAKES)) - 1]
    return until if now < until else 0.0


def decide_pane(spec: Spec, panes: Sequence[Pane], world: World, as_name: str) -> Decision:
    """Return the verdict on a session whose claude is alive in one of `panes`."""
    pane = panes[0]
    screen = world.screens.get(pane.key)
    if screen is not None and screen.blocks:
        hint = f"{PROG} trust {spec.name}" if screen.consent else f"{PROG} attach {spec.name}"
        return Decision(spec, BLOCKED, "", screen.label, hint, pane.pane_id, pane.pid)
    notes = [f"as {as_name!r}"] if as_name else []
    if screen is not None:
        notes.append(screen.label)
    run_ = world.facts.get(spec.name, Facts()).run
    parked = next((r.parked for r in world.records if run_ and r.pid == run_.claude), "")
    if parked:
        notes.append(f"its conversation moved to background job {parked}: claude attach {parked}")
    if pane.width < READABLE[0] or pane.height < READABLE[1]:
        notes.append(f"the pane is too small to read ({pane.width}x{pane.height})")
    return Decision(spec, LIVE, "", ", ".join(notes), "", pane.pane_id, pane.pid)


def decide_supervised(spec: Spec, run: Supervisor, world: World) -> Decision:
    """Return the verdict on a session whose supervisor lives."""
    shown = world.by_pid.get(run.pid, ())
    if not shown:
        if not run.claude and not run.pane:
            why = "being launched"
        elif world.blind:
            why = f"its process lives, but {world.blind}"
        elif run.pane and run.pid in world.hidden:
            why = "it runs in a tmux server that lost its socket to another one"
            return Decision(spec, UNKNOWN, "", why, f"kill {run.pid}", "", run.pid)
        else:
            why = "its terminal is gone; it is ending"
        return Decision(spec, LIVE, "", why, "", "", run.pid)
    name = spec.name
    if all(pane.session != name for pane in shown):
        name = choose_session(shown, [s.name for s in world.specs])
    return decide_pane(spec, shown, world, "" if name == spec.name else name)


def decide_foreign(spec: Spec, what: str, socket: str = "") -> Decision:
    """Return the verdict on a row whose name a tmux session of the person's has."""
    at = "" if socket.rpartition("/")[2] in ("", "default") else f"-S {socket} "
    hint = f"tmux {at}rename-session -t '={spec.name}' {spec.name}-other"
    return Decision(spec, FOREIGN, "", f"a tmux session of this name {what}", hint)


def choose_panes(spec: Spec, world: World) -> list[Pane]:
    """Return the panes in a row's tmux session but those in which another row lives."""
    known = world.facts.items()
    own = (spec.name, spec.renamed)
    others = {f.run.pid for n, f in known if f.run and f.run_live and n not in own}
    return [p for p in world.panes if p.session == spec.name and p.pid not in others]


def decide_present(spec: Spec, world: World) -> Decision | None:
    """Return the verdict on a tmux session of this name without a supervisor of ours."""
    shown = choose_panes(spec, world)
    here = [p for p in shown if not p.dead]
    agents = [p for p in here if p.key in world.claudes]
    held = [p for p in here if p.key in world.screens and world.screens[p.key].blocks]
    if agents or held:
        return decide_pane(spec, agents or held, world, "")
    if shown and not any(pane.ours for pane in shown):
        pane = (here or shown)[0]
        what = f"runs something else (pid {pane.pid})" if here else "still shows what has ended"
        found = decide_foreign(spec, what, pane.socket)
        return found._replace(pane=pane.pane_id, pid=pane.pid)
    return None


def decide_job(spec: Spec, resume: str, world: World) -> Decision:
    """Return the verdict on a conversation that a background job of Claude's keeps."""
    job = world.jobs[resume]
    why = f"Claude's background job {job} keeps this conversation"
    return Decision(spec, HELD, resume, why, f"claude stop {job}")


def decide_held(spec: Spec, resume: str, world: World) -> Decision | None:
    """Return the verdict on a conversation that another process writes, or may write."""
    holder, where = choose_holder(resume, spec.name, world) if resume else (0, "")
    if holder:
        why = f"pid {holder} writes this conversation ({where})"
        return Decision(spec, HELD, resume, why, f"ps -fp {holder}", "", holder)
    if resume and world.unclear:
        return Decision(spec, UNKNOWN, resume, world.unclear)
    return decide_job(spec, resume, world) if resume in world.jobs else None


def decide_rowless(found: Decision) -> Decision:
    """Return the verdict on a live session that has no row: nothing of it is waited for."""
    why = ", ".join(filter(None, ("no longer declared: it will not come back", found.why)))
    return found._replace(verdict=LIVE, why=why, hint=f"{PROG} open {found.spec.name}")


def decide(spec: Spec, world: World) -> Decision:
    """Return the one verdict on a session: the table of README, from top to bottom."""
    facts = world.facts.get(spec.name, Facts())
    if facts.trouble:
        return Decision(spec, UNKNOWN, "", facts.trouble)
    if facts.run is not None and facts.run_live:
        found = decide_supervised(spec, facts.run, world)
        if facts.retired:
            return found if found.why else found._replace(why="retired: it will not come back")
        return decide_rowless(found) if spec in world.left else found
    if facts.retired:
        return Decision(spec, RETIRED, "", "ended on purpose", f"{PROG} start {spec.name}")
    if world.blind:
        return Decision(spec, UNKNOWN, "", world.blind)
    present = decide_present(spec, world)
    if present is not None:
        return present
    if facts.folder == "gone":
        hint = f"{PROG} retire {spec.name}"
        return Decision(spec, GONE, "", f"{spec.directory} does not exist", hint)
    if facts.folder != "ok":
        return Decision(spec, UNKNOWN, "", facts.folder)
    ids = choose_witnesses(spec, facts, world.records)
    if world.no_projects and (ids or spec.pin):
        hint = f"{PROG} open {spec.name}"  # a person may know that nothing was ever said
        return Decision(spec, UNKNOWN, "", world.no_projects, hint)
    resume, note = choose_resume(spec, ids, world)
    for each in (*ids, spec.pin):
        if world.transcripts.get(each):
            break
        if each in world.unreadable:
            return Decision(spec, UNKNOWN, "", world.unreadable[each])
    held = decide_held(spec, resume, world)
    if held is not None:
        return held
    until = choose_rest(facts.health, facts.run, world.now)
    if until and spec.name not in world.insist:
        minutes = int((until - world.now) // 60) + 1
        times = f"ended {facts.health.failures} times right after its launch"
        why = f"{times}; next try in {minutes} min"
        return Decision(spec, RESTING, resume, why, f"{PROG} logs {spec.name}")
    return Decision(spec, LAUNCH, resume, note)


def decide_late(decision: Decision, world: World) -> Decision | None:
    """Return what has come between a plan and its launch, None where nothing has.

    `world` has the supervisors, Claude's records, the panes and the registry's rows of now.
    """
    spec = decision.spec
    facts = world.facts.get(spec.name, Facts())
    if facts.trouble:
        return Decision(spec, UNKNOWN, "", facts.trouble)
    if facts.run_live:
        return Decision(spec, LIVE, "", "launched meanwhile")
    if facts.retired or not (spec.declared or spec.name in {s.name for s in world.specs}):
        return Decision(spec, RETIRED, "", "ended meanwhile")
    return decide_present(spec, world) or decide_held(spec, decision.resume, world)


def decide_shared(decision: Decision, owner: str) -> Decision:
    """Return the verdict on a row whose conversation another row owns."""
    why = f"session {owner!r} takes up this conversation"
    return decision._replace(verdict=HELD, why=why, hint=f"{PROG} retire {decision.spec.name}")


def plan(world: World) -> tuple[Decision, ...]:
    """Return one decision for each session of the restore set, in its order, then of those
    that live without a row.

    Of rows that resolve to one conversation the one with the newest .id owns it, the
    first of equals; a row that was renamed lives on as its new name.
    """
    decisions = [decide(spec, world) for spec in world.specs]
    owners: dict[str, str] = {}
    for d in decisions:
        if d.verdict in (LAUNCH, RESTING) and d.resume:
            owner = owners.setdefault(d.resume, d.spec.name)
            age, best = (world.facts.get(n, Facts()).ids_at for n in (d.spec.name, owner))
            if age > best:
                owners[d.resume] = d.spec.name
    heirs = {spec.renamed: spec.name for spec in world.specs if spec.renamed}
    verdicts = {d.spec.name: d.verdict for d in decisions}
    planned = []
    for d in decisions:
        heir = heirs.get(d.spec.name, "")
        if d.verdict in (LIVE, BLOCKED, RETIRED):
            planned.append(d)
        elif world.facts.get(d.spec.renamed, Facts()).run_live:  # it was renamed once more
            planned.append(Decision(d.spec, LIVE, "", f"as {d.spec.renamed!r}"))
        elif heir and verdicts[heir] != RETIRED:
            planned.append(Decision(d.spec, LIVE, "", f"as {heir!r}"))
        elif owners.get(d.resume, d.spec.name) != d.spec.name:
            planned.append(decide_shared(d, owners[d.resume]))
        else:
            planned.append(d)
    facts = {spec: world.facts[spec.name] for spec in world.left}
    living = (spec for spec, f in facts.items() if f.run_live and not f.retired)
    return (*planned, *(decide(spec, world) for spec in living))


def decide_retired(world: World) -> list[Decision]:
    """Return the verdicts on sessions that were ended on purpose and have no row."""
    facts = {spec: world.facts[spec.name] for spec in world.left}
    return [decide(spec, world) for spec, f in facts.items() if f.retired or f.trouble]


def plan_name(directory: str, home: str, user: str, owners: Mapping[str, str]) -> str:
    """Return a session name for a folder that no other folder owns.

    `owners` maps the names that are taken to their folders ("" for one of unknown folder).
    """
    parts = [part for part in directory.split("/") if part]
    base = user if directory == home else (parts[-1] if parts else "root")
    wished = [base, "-".join(parts[-2:])]
    for at in range(len(wished) + 1000):
        text = wished[at] if at < len(wished) else f"{wished[0]}-{at}"
        name = "".join(c if c.isalnum() or c in SAFE_PUNCTUATION else "_" for c in text)
        while len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES - 4:
            name = name[1:]
        if name[:1] in BAD_FIRST:
            name = "_" + name[1:]
        if owners.get(name, directory) == directory:
            return name
    raise Failure(f"{directory}: no session name is free")


def plan_open(directory: str, world: World) -> Spec | None:
    """Return the row that `open` means in a folder, or None where there is none.

    Declared rows come before opened ones, a live one before the others; a session that
    was ended on purpose keeps its name.
    """
    heirs = {s.renamed for s in world.specs if not world.facts.get(s.name, Facts()).retired}
    known = (spec for spec in (*world.specs, *world.left) if spec.name not in heirs)
    rows = [spec for spec in known if spec.directory == directory]
    declared = [spec for spec in rows if spec.declared] or rows
    live = [s for s in declared if world.facts.get(s.name, Facts()).run_live]
    live += [s for s in declared if any(p.session == s.name for p in world.panes)]
    return next(iter(live or declared), None)


def claude_argv(
    binary: str, args: Sequence[str], resume: str, name: str, settings: str
) -> tuple[str, ...]:
    """Return the command line of a session; `name` is "" without Remote Control."""
    remote = ("--remote-control", name) if name else ()
    back = ("--resume", resume) if resume else ()
    return (binary, *choose_own_args(args), *back, *remote, "--settings", settings)


def choose_environment(
    environ: Mapping[str, str], name: str, directory: str, first_on_path: str
) -> dict[str, str]:
    """Return the environment of a session: the caller's without marks of another agent.

    CLAUDE_CODE_CHILD_SESSION alone makes Claude 2.1.332 save no transcript at all.
    """
    drop = AGENT_MARKERS | UNIT_MARKERS | TERMINAL_OWN
    env = {key: value for key, value in environ.items() if key not in drop}
    env["PWD"] = directory
    if name:
        env["PS_SESSION_NAME"] = name
    if first_on_path:
        rest = [p for p in env.get("PATH", "").split(":") if p and p != first_on_path]
        env["PATH"] = ":".join([first_on_path, *rest])
    return env


def merge_settings(base: object, over: object) -> object:
    """Return settings `over` laid over `base`: objects merge, other values replace."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    merged = dict(base)
    for key, value in over.items():
        merged[key] = merge_settings(base[key], value) if key in base else value
    return merged


def session_settings(
    hooks: Mapping[str, Sequence[str]], own: Mapping[str, object]
) -> dict[str, object]:
    """Return the content of a file for claude --settings.

    No matcher, so that no source is missed; equal command strings run once.  Without
    disableAgentView one Left key on an empty prompt moves the conversation out of the
    pane under a new id.  Seen: Claude Code 2.1.332.
    """
    base = {
        "skipDangerousModePermissionPrompt": True,
        "disableAgentView": True,
        "env": {CONSENT_ENV: "1"},
    }
    settings = merge_settings(base, own)
    assert isinstance(settings, dict)
    theirs = own.get("hooks")
    all_hooks = dict(theirs) if isinstance(theirs, dict) else {}
    for event, commands in hooks.items():
        entry = {"hooks": [{"type": "command", "command": c, "timeout": 10} for c in commands]}
        given = all_hooks.get(event)
        all_hooks[event] = [*(given if isinstance(given, list) else []), entry]
    settings["hooks"] = all_hooks
    return settings


def classify_folder(code: int, why: str) -> str:
    """Return a folder's state from the errno of looking at it: ok, gone, or why neither."""
    if code in (0, errno.ENOENT, errno.ENOTDIR):
        return "gone" if code else "ok"
    return f"its directory cannot be read: {why}"


def choose_part(argv: Sequence[str]) -> str:
    """Return which of PARTS a command line asks for, or "" where the parser is to read it."""
    verb, *rest = argv or [""]
    alone = verb in ("start", "status") and not rest
    plain_words = verb in ("run", "host") and rest[:1] not in (["-h"], ["--help"])
    ours = verb == "hook" or (verb == "_pane" and len(rest) == 1)
    return verb if alone or plain_words or ours else ""


def choose_direct(environ: Mapping[str, str], argv: Sequence[str]) -> str:
    """Return why a launch is to be executed directly, whatever the machine can do, or ""."""
    if environ.get("AGENT_LEDGER_HUMAN") == "1":
        return BY_A_PERSON
    if environ.get("AGENT_LEDGER_ID"):
        return f"inside launch {environ['AGENT_LEDGER_ID']}"
    if environ.get("TMPJAIL_ACTIVE"):
        return "inside a jail"
    if environ.get("TMUX"):
        return "inside tmux"
    # A pane gets 0, 1 and 2 alone; `<(...)` of a shell is another, and so is Node's channel.
    named = any("/dev/fd/" in word or "/proc/self/fd/" in word for word in argv)
    if named or environ.get("NODE_CHANNEL_FD"):
        return "it is given more descriptors than standard ones"
    return "AGENT_LEDGER_MUX=0" if environ.get("AGENT_LEDGER_MUX") == "0" else ""


def choose_hosted_name(word: str) -> str:
    """Return the tmux session's name of a launch, from its own name or its command's."""
    name = "".join(c if c.isalnum() or c in SAFE_PUNCTUATION else "_" for c in word)[:32]
    return f"_{name}" if not name or name[0] in BAD_FIRST else name


# (its end is recorded, its process lives, its caller or a terminal watches it)
LAUNCH_STATES = {
    (False, False, False): LOST,
    (False, False, True): LOST,  # its caller is about to say so
    (False, True, False): DETACHED,
    (False, True, True): RUNNING,
    (True, False, False): ENDED,
    (True, False, True): ENDED,
    (True, True, False): ENDED,  # what it left behind still holds its output
    (True, True, True): ENDED,
}


def classify_hosted(entry: Launch, alive: bool, watched: bool) -> str:
    """Return the state of a launch; one that was executed directly leaves no receipt."""
    ended = entry.ended > 0 or bool(entry.direct and not alive)
    return LAUNCH_STATES[ended, alive, watched]


def server_words(
    session: str, size: Sequence[str], detach: str, term: str, rgb: bool, command: Sequence[str]
) -> tuple[str, ...]:
    """Return the tmux commands of a server that adds nothing of its own to its one pane.

    No status line and no key but the one that detaches: everything else, the mouse
    included, passes to the program.  The key comes last: a wrong one must not stop it.
    """
    settings = (
        "-f /dev/null start-server ; set-option -s escape-time 0 ; set-option -s focus-events on ; "
        "set-option -sq extended-keys on ; set-option -g status off ; set-option -g prefix None ; "
        "set-option -g history-limit 50000 ; set-option -gq allow-passthrough on ; "
        f"set-option -g default-terminal {term} ; unbind-key -a -T root ; unbind-key -a -T prefix"
    ).split(" ")
    colours = ("set-option", "-as", "terminal-features", ",*:RGB", ";") if rgb else ()
    new = ("new-session", "-d", "-P", "-F", "#{pid}", "-s", session, "-x", size[0], "-y", size[1])
    key = (";", "bind-key", "-T", "root", detach, "detach-client") if detach else ()
    return (*settings, ";", *colours, *new, *command, *key)


# Claude Code 2.1.332's prompts: phrases that identify one at any width (white space and
# frames are left out before comparing), what to call it, whether it holds the pane, and
# whether `trust` may answer it.  The first match counts.
SCREENS: tuple[tuple[tuple[str, ...], str, bool, bool], ...] = (
    (("Yes, I trust this folder",), "Claude's folder-trust prompt", True, True),
    (("running in Bypass Permissions mode",), "the Bypass Permissions warning", True, True),
    (("Detected a custom API key",), "the API-key approval", True, False),
    (("Settings Error",), "a settings error", True, False),
    (("Configuration error", "valid JSON"), "a corrupt .claude.json", True, False),
    (("New MCP server found in this project",), "an MCP server approval", True, False),
    (("Resume session",), "the resume picker", True, False),
    (("Resume from summary",), "the resume-from-summary question", True, False),
    (("Select login method",), "the sign-in", True, False),
    (("Security notes:",), "the security notes", True, False),
    (("Syntax theme:",), "the theme choice", True, False),
    (("running in the background", "claude attach"), "held by a background job", True, False),
    (("Do you want to",), "waiting for you", False, False),
    (("Claude Code is suspended",), "suspended (kill -CONT brings it back)", False, False),
)
# How a dialog ends.  What a conversation quotes stands above the input box instead, whose
# lower rule is two lines from the bottom at most.
SCREEN_ENDS = (
    "Enter to confirm",
    "Esc to cancel",
    "Esc to reject",
    "Esc to exit",
    "Esc to close",
    "Press Enter",
    "No, exit",
    "Yes, I trust this folder",
    "Yes, I accept",
    "claude stop",
    "Syntax theme:",
    "Run `fg`",
    "To undo typing",
)
AGENT_VIEW = "Your session moved to the background"
FRAMES = dict.fromkeys(range(0x2500, 0x25A0))  # what str.translate leaves out


def squeeze(text: str) -> str:
    """Return what is left of a screen without white space and frames."""
    words = "".join(text.split())
    return words if words.isascii() else words.translate(FRAMES)


SQUEEZED_ENDS = tuple(squeeze(end) for end in SCREEN_ENDS)


def classify_screen(text: str) -> Screen | None:
    """Return the prompt that a pane shows now, at its bottom, or None."""
    if not text or text.isspace():
        return None
    lines = [line.strip() for line in text.splitlines() if line and not line.isspace()]
    if any(len(line) > 4 and not line.strip("\u2500") for line in lines[-3:]):
        moved = squeeze(AGENT_VIEW) in squeeze("".join(lines))
        return Screen("its conversation moved to a background job", False) if moved else None
    lines = [line for line in lines if squeeze(line)]
    bottom = squeeze("".join(lines[-3:]))
    if not any(end in bottom for end in SQUEEZED_ENDS):
        return None
    whole = squeeze("".join(lines[-40:]))
    for phrases, label, blocks, consent in SCREENS:
        if all(squeeze(phrase) in whole for phrase in phrases):
            return Screen(label, blocks, consent)
    return None


def choose_notice(verdict: str, notified: str) -> str:
    """Return the trouble a person has been told of once this verdict is reported, "" for none.

    Only a session that is up at a later tick is out of its trouble: one that is launched
    again and again and dies does not tell its person each time.
    """
    if verdict in (BLOCKED, RESTING):
        return verdict
    return "" if verdict in (LIVE, RETIRED) else notified


# Words of claude's own command line that an adopted session keeps, and whether a value follows.
ADOPTED_ARGS = {"--dangerously-skip-permissions": 0, "--permission-mode": 1, "--model": 1}


def choose_adopted_args(words: Sequence[str]) -> tuple[str, ...]:
    """Return what a running claude was given that says how, not which, conversation it holds."""
    kept: list[str] = []
    for at, word in enumerate(words):
        if word.partition("=")[0] in ADOPTED_ARGS:
            kept += words[at : at + 1 + ("=" not in word and ADOPTED_ARGS[word])]
    return tuple(kept)


def choose_completions(
    words: Sequence[str], verbs: Sequence[str], names: Iterable[str], launches: Iterable[str]
) -> list[str]:
    """Return what may follow these words of our command line."""
    if not words:
        return list(verbs)
    more = launches if words[0] in ("attach", "capture", "logs", "stop") else ()
    takes = ("open", "start", "trust", "retire", "rename")
    return sorted({*names, *more}) if more or words[0] in takes else []


def classify_tool(name: str, answer: str, floor: tuple[int, int], mend: str) -> Check:
    """Return the check of a program by its answer to --version; a build without a number is new."""
    version = parse_version(answer)
    if not answer:
        return Check(name, FAIL, "not found", mend)
    if (0, 0) < version < floor:
        return Check(name, FAIL, f"{answer}: {floor[0]}.{floor[1]} or newer is needed", mend)
    return Check(name, GOOD, answer)


def classify_units(
    service: Mapping[str, str], timer: Mapping[str, str], uptime: float
) -> list[Check]:
    """Return the checks of unit and timer from their properties; `uptime` in seconds."""
    checks = [Check("unit", GOOD, "enabled")]
    if service.get("UnitFileState") != "enabled":
        text = "it is not enabled: nothing comes back at boot"
        checks = [Check("unit", FAIL, text, f"{PROG} install")]
    running, ran = service.get("ActiveState") == "activating", service.get("InactiveEnterTimestamp")
    result = service.get("Result", "")
    left = parse_span(timer.get("NextElapseUSecMonotonic", "")) - uptime
    off = timer.get("UnitFileState") != "enabled" or timer.get("ActiveState") != "active"
    if running:
        checks.append(Check("last run", GOOD, "it runs now"))
    elif not ran and left > 0 and not off:
        checks.append(Check("last run", GOOD, "none yet since the user manager started"))
    elif not ran:
        text = "it has not run since the user manager started"
        checks.append(Check("last run", WARN, text, f"systemctl --user start {UNIT}"))
    elif result == "success":
        checks.append(Check("last run", GOOD, f"{ran}: success"))
    else:
        checks.append(Check("last run", FAIL, f"{ran}: {result}", f"{PROG} list"))
    if off:
        mend = f"systemctl --user enable --now {TIMER}"
        checks.append(Check("timer", FAIL, "it is off: nothing comes back after a crash", mend))
    elif running or left > -60:
        text = "after this run" if running else f"in {max(left, 0.0):.0f} s"
        checks.append(Check("timer", GOOD, f"next run {text}"))
    else:
        mend = f"systemctl --user restart {TIMER}"
        checks.append(Check("timer", FAIL, "it has no next run", mend))
    return checks


KEY_NAMES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")


def classify_sign_in(env: Mapping[str, str], helper: bool, signed_in: bool) -> Check:
    """Return whether Remote Control can use the sign-in, or what stands in its way.

    It needs a claude.ai account; with anything else Claude 2.1.332 ignores the option
    without a word.
    """
    off = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"
    reasons = [name for name in (*KEY_NAMES, off) if env.get(name)]
    reasons += [n for n in env if n.startswith("CLAUDE_CODE_USE_") and env[n] not in ("", "0")]
    if reasons or helper:
        name = (reasons or ["apiKeyHelper"])[0]
        mend = f"unset {name}" if env.get(name) else f"take {name} out of settings.json"
        return Check("sign-in", WARN, f"no Remote Control: {name} is set", mend)
    if not signed_in:
        text = "nobody is signed in to claude.ai: no Remote Control, and a session may wait for it"
        return Check("sign-in", WARN, text, "claude  (then type /login)")
    return Check("sign-in", GOOD, "a claude.ai account: Remote Control can use it")


def classify_retention(period: float, ages: Mapping[str, float]) -> Check:
    """Return whether a conversation will soon be cleaned; days, by session."""
    mend = 'set "cleanupPeriodDays": 365 in settings.json'
    if not period:
        text = "cleanupPeriodDays is 0: Claude keeps no conversation to come back to"
        return Check("retention", FAIL, text, mend)
    first = max(ages, key=lambda name: ages[name], default="")
    left = period - ages.get(first, 0.0)
    if first and left < min(7.0, period / 2):
        when = f"in {left:.0f} days" if left >= 1 else "at any moment"
        text = f"the conversation of {first} is the next to be cleaned, {when}, unless it is used"
        return Check("retention", WARN, text, mend)
    return Check("retention", GOOD, f"unused conversations are kept for {period:g} days")


def choose_trusted(directory: str, projects: Mapping[str, object]) -> str:
    """Return the folder whose trust covers a directory: itself or one above; "" for none."""
    while directory:
        entry = projects.get(directory)
        if isinstance(entry, dict) and entry.get("hasTrustDialogAccepted") is True:
            return directory
        directory = "" if directory == "/" else os.path.dirname(directory)
    return ""


def shell_status(returncode: int) -> int:
    """Map -N (killed by signal N) to the shell's 128+N."""
    return 128 - returncode if returncode < 0 else returncode


def stale_ids(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the .id files that name neither a live session nor one of the restore set."""
    return tuple(sorted(set(names) - set(known)))


# ---- Rendering ------------------------------------------------------------


def format_pairs(pairs: Mapping[str, object]) -> str:
    """Return a state file of key=value lines; a line break in a value becomes a space."""
    flat = {key: str(value).replace("\n", " ") for key, value in pairs.items()}
    return "".join(f"{key}={value}\n" for key, value in flat.items())


def format_health(health: Health) -> str:
    """Return a .health file."""
    return format_pairs(dict(zip(("failures", "last", "notified"), health)))


def escape(text: str) -> str:
    """Return what stands for a text between double quotes in Python, systemd, git's files."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def format_supervisor(run: Supervisor) -> str:
    """Return a .run file."""
    keys = "boot pid start claude claude_start pane socket resume at claude_home"
    return format_pairs(dict(zip(keys.split(), run)))


def iso(at: float) -> str:
    """Return a moment as UTC in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def format_ending(ending: Ending, stamp: str) -> str:
    """Return the one line of a .exit file."""
    return (
        f"rc={ending.rc} signalled={ending.signalled or '-'} system={ending.system or '-'}"
        f" user={ending.user or '-'} scope={ending.scope or '-'}"
        f" killed={ending.killed or '-'} reason={ending.reason or '-'}"
        f" deliberate={'yes' if ending.deliberate else 'no'} at={stamp}\n"
    )


def format_row(fields: Iterable[str]) -> str:
    """Return a TSV row; empty fields become "-"."""
    return "\t".join(field or "-" for field in fields) + "\n"


def format_args(args: Sequence[str]) -> str:
    """Return arguments as the registry keeps them, "" for none."""
    import json

    return json.dumps(list(args)) if args else ""


def format_registry(specs: Iterable[Spec]) -> str:
    """Return the registry file."""
    head = "# name\tdirectory\targuments (JSON)\trenamed from\n"
    rows = (format_row((s.name, s.directory, format_args(s.args), s.renamed)) for s in specs)
    return head + "".join(rows)


def format_retired(spec: Spec, how: str, stamp: str) -> str:
    """Return a .retired file: when, how, and the whole row."""
    return format_pairs(
        {
            "at": stamp,
            "how": how,
            "directory": spec.directory,
            "issue": spec.issue,
            "pin": spec.pin,
            "user": spec.user,
            "declared": "yes" if spec.declared else "no",
            "args": format_args(spec.args),
            "renamed": spec.renamed,
        }
    )


def plain(text: str) -> str:
    """Return a text on one line, with what would steer a terminal spelt out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, two spaces apart; empty cells become "-"."""
    cells = [[plain(cell) or "-" for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in cells)
    return "\n".join(lines) + "\n"


def format_outcome(outcome: Outcome) -> str:
    """Return the one line of a session in the report of `start`."""
    d = outcome.decision
    detail = "; ".join(part for part in (outcome.why, outcome.url) if part)
    hint = f" (try: {d.hint})" if d.hint and not outcome.ok else ""
    return plain(f"{d.spec.name}: {d.verdict}{': ' if detail else ''}{detail}{hint}")


def format_checks(checks: Iterable[Check]) -> str:
    """Return the report of `doctor`, one line a check."""
    mends = [f" (try: {c.mend})" if c.mend and c.state != GOOD else "" for c in checks]
    lines = (plain(f"{c.state:<5} {c.name}: {c.text}{mend}") for c, mend in zip(checks, mends))
    return "".join(f"{line}\n" for line in lines)


def format_status(states: Mapping[str, Sequence[str]]) -> str:
    """Return one line from {state: names}: how many, and who needs a person."""
    parts = []
    for state, names in states.items():
        if names:
            few = ", ".join([*names[:3], "..."][: len(names)])
            parts.append(f"{len(names)} {state}" + (f" ({few})" if state != "live" else ""))
    return ", ".join(parts) or "no sessions"


def format_json(value: object) -> str:
    """Return a value as JSON; importing json would cost a launch more than writing its record."""
    if isinstance(value, dict):
        pairs = (f"{format_json(key)}: {format_json(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_json, value)) + "]"
    if isinstance(value, str):
        try:
            from _json import encode_basestring_ascii as quoted
        except ImportError:
            from json.encoder import encode_basestring_ascii as quoted
        return str(quoted(value))
    return "null" if value is None else repr(value)


def format_launch(entry: Launch) -> str:
    """Return a ledger record."""
    pairs: dict[str, object] = dict(zip(LAUNCH_KEYS, entry))
    pairs["mux"] = {"kind": entry.mux or None}
    pairs["ended"] = entry.ended or None
    pairs["status"] = entry.status if entry.status >= 0 else None
    return format_json(pairs) + "\n"


def format_receipt(status: int) -> bytes:
    """Return a receipt; all are equally long, so that one can be written over another."""
    return b"%3d\n" % status


def format_state(hosted: Hosted) -> str:
    """Return a launch's state with its status, where there is one."""
    status = hosted.entry.status
    state = f"{hosted.state} {status}" if hosted.state == ENDED and status >= 0 else hosted.state
    return f"{state}: {hosted.trouble}" if hosted.trouble else state


def attach_command(hosted: Hosted) -> str:
    """Return the command that shows a launch, "" where nothing is to be seen."""
    if not hosted.alive or hosted.trouble or not hosted.entry.session:
        return ""
    if hosted.entry.direct:
        return f"tmux -S {hosted.entry.socket} attach -t '={hosted.entry.session}'"
    return f"{PROG} attach {hosted.entry.id}"


def format_hosted(launches: Sequence[Hosted]) -> str:
    """Return the table of launches: what lives or was lost, and the latest that ended."""
    ended = [h for h in launches if h.state == ENDED][ENDED_SHOWN:]
    rows = [("LAUNCH", "STATE", "SESSION", "COMMAND", "ATTACH")]
    for h in launches:
        if h not in ended:
            words = " ".join(" ".join(h.entry.argv).split())
            name = h.entry.name or h.entry.session
            rows.append((h.entry.id, format_state(h), name, words[:60], attach_command(h)))
    more = f"({len(ended)} more that ended: {PROG} list --json)\n" if ended else ""
    return format_table(rows) + more


# ---- Files ----------------------------------------------------------------


def open_file(path: str) -> int:
    """Open a regular file for reading.  Raises OSError for all others, waiting for none."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_file(path: str, limit: int = 1 << 24) -> str:
    """Return a whole text file, undecodable bytes kept as surrogates.

    Raises OSError, also for one of more than `limit` bytes: half a file is not its content.
    """
    fd = open_file(path)
    try:
        parts = []
        while True:
            part = os.read(fd, 65536)
            if not part:
                break
            parts.append(part)
            limit -= len(part)
            if limit < 0:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def read_state(path: str, *, torn: bool = False) -> str:
    """Return a state file, "" where it is missing, empty or was cut to NULs by a power loss.

    With `torn` one that was cut comes as it is, for a reader that judges it by lines.
    Raises Failure when it is there and cannot be read, or when somebody else put it there.
    """
    try:
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode) or seen.st_uid not in (0, os.getuid()):
            what = "a link" if stat.S_ISLNK(seen.st_mode) else f"a file of uid {seen.st_uid}"
            raise Failure(f"{path} is {what}, not ours: look at it and remove it")
        text = read_file(path)
    except FileNotFoundError:
        return ""
    except OSError as e:
        raise Failure(f"{path}: {e.strerror}") from None
    return "" if "\0" in text and not torn else text


def sync_folder(folder: str) -> None:
    """Make a rename in a folder survive a power cut; some file systems refuse, and that is fine."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)


def write_temporary(path: str, text: str | bytes, mode: int, *, sync: bool = True) -> str:
    """Write a complete, synced file beside `path` and return its name.  Raises OSError."""
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
            data = memoryview(raw)
            while data:
                data = data[os.write(fd, data) :]
            os.fchmod(fd, mode)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def mode_of(path: str, default: int) -> int:
    """Return the permission bits of a file, or `default` where there is none."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return default


def write_atomic(
    path: str, text: str | bytes, mode: int = 0o600, *, keep_mode: bool = False, sync: bool = True
) -> None:
    """Replace a file whole: a reader sees the old one or the new one, also after a power cut.

    With `keep_mode`, for what is a person's, a symlink is followed and its target replaced.
    Raises OSError, with the old file intact.  Without `sync` a power cut may leave nothing:
    for what it makes void anyway.
    """
    path = os.path.realpath(path) if keep_mode else path
    mode = mode_of(path, mode) if keep_mode else mode
    temporary = write_temporary(path, text, mode, sync=sync)
    try:
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if sync:
        sync_folder(os.path.dirname(path))


def write_state(path: str, text: str) -> None:
    """Replace a state file.  Raises Failure in place of OSError."""
    try:
        write_atomic(path, text)
    except OSError as e:
        raise Failure(f"{path}: {e.strerror}", hint=f"df -h {os.path.dirname(path)}") from None


def remove(path: str) -> None:
    """Remove a file that may be gone already.  Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


# ---- Running programs -----------------------------------------------------


def say(message: str) -> None:
    """Write one line to stderr at once; a full disk or a gone reader there stops nothing else."""
    try:
        if sys.stderr is not None:
            os.write(2, f"{message}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return  # buffered, it would be tried again at exit and change the status


def journal_prefix(level: int) -> str:
    """Return sd-daemon(3)'s priority prefix when stderr is the journal, else ""."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        seen = os.fstat(2)
    except OSError:
        return ""
    return f"<{level}>" if stream == f"{seen.st_dev}:{seen.st_ino}" else ""


def tell_all(messages: Iterable[str], level: int) -> None:
    """Say each message on a line of its own, under the program's name."""
    prefix = f"{journal_prefix(level)}{PROG}: "
    lines = [prefix + plain(message)[:4000] for message in messages]
    if lines:
        say("\n".join(lines))


def tell(message: str, level: int = 6) -> None:
    """Say a message under the program's name; level 3 is an error, 4 a warning, 6 news."""
    tell_all([message], level)


def report(failure: Failure) -> None:
    """Say what failed and why, then the command that helps."""
    tell(str(failure), 3)
    if failure.hint:
        tell(f"hint: {failure.hint}", 3)


def spawn_signals() -> list[int]:
    """Return the signals a child must find at their default, whatever we did to ours."""
    names = "SIGHUP SIGINT SIGQUIT SIGTERM SIGPIPE SIGXFSZ SIGTSTP SIGTTIN SIGTTOU SIGCHLD SIGCONT"
    return [getattr(signal, name) for name in names.split()]


def close_strays() -> list[int]:
    """Keep descriptors of our caller's out of what we start: a server would hold its pipes open.

    Returns those that could be inherited before.
    """
    changed = []
    for fd in (int(name) for name in os.listdir("/proc/self/fd")):
        try:
            if fd > 2 and os.get_inheritable(fd):
                os.set_inheritable(fd, False)
                changed.append(fd)
        except OSError:
            continue  # the listing's own
    return changed


def drain(fd: int, into: list[bytes]) -> bool:
    """Read what a non-blocking pipe holds; False at its end."""
    while True:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        into.append(data)


def feed(fd: int, data: memoryview) -> memoryview:
    """Write what a non-blocking pipe takes and return the rest; a reader gone takes all."""
    try:
        return data[os.write(fd, data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[:0]


def converse(
    pid: int, pipes: Sequence[int], data: memoryview, timeout: float
) -> list[list[bytes]] | None:
    """Feed a child and collect its output until it has ended; None when time ran out.

    A daemon that the child left behind may hold the pipes open: the child's own end
    counts, not theirs.
    """
    feeding, *reading = pipes
    output: list[list[bytes]] = [[] for _ in reading]
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    for fd in (pidfd, *reading):
        poll.register(fd, select.POLLIN)
    if data:
        poll.register(feeding, select.POLLOUT)
    deadline = time.monotonic() + timeout
    try:
        while True:
            events = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not events:
                return None
            for fd, into in zip(reading, output):
                if (fd in events or pidfd in events) and not drain(fd, into) and fd in events:
                    poll.unregister(fd)
            if pidfd in events:
                return output
            if feeding in events:
                data = feed(feeding, data)
                if not data:
                    poll.unregister(feeding)
                    os.close(feeding)
                    feeding = -1
    finally:
        os.close(pidfd)
        for fd in (*reading, *([feeding] if feeding >= 0 else [])):
            os.close(fd)


class Program:
    """A short-lived program from its start to its end."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        label: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it.  Raises Failure: not found."""
        self.label = label or argv[0]
        if os.environ.get("PS_TRACE"):
            import shlex

            say(f"+ {shlex.join(argv)}")
        ends = [os.pipe() for _ in range(3)]
        self.pipes = (ends[0][1], ends[1][0], ends[2][0])
        theirs = (ends[0][0], ends[1][1], ends[2][1])
        for fd in self.pipes:
            os.set_blocking(fd, False)
        actions = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(theirs)]
        try:
            self.pid = os.posix_spawnp(
                argv[0],
                list(argv),
                os.environ if env is None else dict(env),
                file_actions=actions,
                setsigdef=spawn_signals(),
            )
        except (OSError, ValueError) as e:  # ValueError: a NUL in a word
            for fd in self.pipes:
                os.close(fd)
            why = getattr(e, "strerror", None) or str(e)
            why = "command not found" if isinstance(e, FileNotFoundError) else why
            raise Failure(f"{argv[0]}: {why}") from None
        finally:
            for fd in theirs:
                os.close(fd)

    def give(self, input: str) -> Program:
        """Give it all of its input, for now what its pipe takes; to be done once."""
        data = memoryview(input.encode("utf-8", "surrogateescape"))
        self.rest = feed(self.pipes[0], data) if data else data
        if not self.rest:
            os.close(self.pipes[0])
            self.pipes = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), *self.pipes[1:])
        return self

    def finish(self, *, check: bool = True, timeout: float = RUN_TIMEOUT) -> Done:
        """Wait for its end and return its output.

        Raises ToolError on a non-zero exit unless `check` is false, and NoAnswer when it is
        silent for `timeout` seconds (it is killed then).
        """
        output = None
        try:
            output = converse(self.pid, self.pipes, self.rest, timeout)
        except OSError as e:
            raise Failure(f"{self.label}: {e.strerror}") from None
        finally:
            if output is None:
                os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        if output is None:
            raise NoAnswer(f"{self.label}: no answer in {timeout:g} s")
        code = os.waitstatus_to_exitcode(status)
        out, err = (b"".join(part).decode("utf-8", "surrogateescape") for part in output)
        if check and code:
            raise ToolError(self.label, code, err)
        return Done(code, out, err)


def run(
    argv: Sequence[str],
    *,
    label: str = "",
    check: bool = True,
    input: str = "",
    timeout: float = RUN_TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run a short-lived program to its end and return its output.  Raises as Program does."""
    program = Program(argv, label=label, env=env).give(input)
    return program.finish(check=check, timeout=timeout)


def check_socket(path: str) -> None:
    """Refuse a socket whose folder somebody else made, as tmux itself does.

    Raises Failure.  A folder that is not there yet is fine.
    """
    if len(os.fsencode(path)) > 107:  # sun_path of unix(7)
        raise Failure(f"tmux: {path}: File name too long", hint="a shorter TMUX_TMPDIR")
    folder = os.path.dirname(path)
    try:
        seen = os.lstat(folder)
    except FileNotFoundError:
        return
    except OSError as e:
        raise Failure(f"tmux: {folder}: {e.strerror}") from None
    if not os.path.basename(folder).startswith("tmux-"):
        return  # a folder the person chose
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o007:
        why = "has unsafe permissions (TMUX_TMPDIR can name another place)"
        raise Failure(f"tmux: directory {folder} {why}", hint=f"ls -ld {folder}")


def socket_inode(path: str) -> str:
    """Return the inode of a unix socket that a process listens on by this path, or "".

    Where no client reaches it, its file is gone or is another one by now.
    Source: /proc/net/unix; 00010000 in its fourth column is __SO_ACCEPTCON.
    """
    real = f"{os.path.realpath(os.path.dirname(path))}/{os.path.basename(path)}"
    for line in read_file("/proc/net/unix", 1 << 24).splitlines():
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[3] == "00010000" and fields[7] in (path, real):
            return fields[6]
    return ""


def screens_input(token: str, pane_ids: Iterable[str]) -> str:
    """Return the tmux commands that print what panes show, and below all how high they are.

    Nothing stands between them: a display-message costs tmux more than a capture-pane (3.3a).
    """
    captures = "".join(f"capture-pane -p -t '{p}'\n" for p in pane_ids)
    heights = f"list-panes -a -F '{token} #{{pane_id}} #{{pane_height}}'\n"
    return f"display-message -p {token}\n{captures}{heights}"


class Tmux(NamedTuple):
    """One tmux server, named by its socket's path."""

    socket: str

    def __call__(
        self,
        *args: str,
        check: bool = True,
        input: str = "",
        scope: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = RUN_TIMEOUT,
    ) -> Done:
        """Run one tmux client.  -u: without it a systemd unit's locale turns tabs into "_"."""
        argv, label = [*scope, "tmux", "-u", "-S", self.socket, *args], f"tmux {args[0]}"
        return run(argv, label=label, check=check, input=input, env=env, timeout=timeout)

    def panes(self) -> tuple[Pane, ...] | None:
        """Return every pane of the server, or None when there is no server.

        Raises Failure for anything else: unreachable is not empty.
        """
        check_socket(self.socket)
        for attempt in range(5):
            done = self("list-panes", "-a", "-F", PANE_FORMAT, check=False)
            if done.status == 0:
                return parse_panes(done.stdout, self.socket)
            if any(text in done.stderr for text in NO_SERVER):
                if socket_inode(self.socket):
                    raise Failure(
                        f"tmux: {self.socket}: the server lives, its socket file is gone",
                        hint="pkill -USR1 -u $USER tmux",
                    )
                return None
            if EMPTY_SERVER in done.stderr:
                return ()
            if not any(text in done.stderr for text in SERVER_EXITING):
                break
            time.sleep(0.02 * 2**attempt)  # it is going; tmux offers nothing to wait on
        raise ToolError("tmux list-panes", done.status, done.stderr)

    def screens(self, pane_ids: Sequence[str]) -> dict[str, str]:
        """Return what each pane shows, through one client; one that went nothing, or not at all."""
        if not pane_ids:
            return {}
        token = os.urandom(8).hex()
        done = self("source-file", "-", input=screens_input(token, pane_ids), check=False)
        try:
            return parse_screens(token, pane_ids, done.stdout.partition(f"{token}\n")[2])
        except Failure:  # a tmux that prints otherwise is asked for each
            each = ("capture-pane", "-p", "-t")
            return {p: self(*each, p, check=False).stdout for p in pane_ids}


class Asking:
    """One tmux client that lists every pane, and then waits to hear which of them to show."""

    def __init__(self, socket: str) -> None:
        """Start it.  Raises Failure."""
        check_socket(socket)
        self.socket, self.token = socket, os.urandom(8).hex()
        argv = ["list-panes", "-a", "-F", PANE_FORMAT, ";", "source-file", "-"]
        self.client = Program(["tmux", "-u", "-S", socket, *argv])
        self.named: Sequence[str] = ()

    def show(self, pane_ids: Sequence[str]) -> None:
        """Name the panes; to be done once, with none of them too."""
        self.named = pane_ids
        self.client.give(screens_input(self.token, pane_ids))

    def answer(self) -> tuple[tuple[Pane, ...], dict[str, str]]:
        """Return the panes, and what the named ones show.  Raises Failure for half an answer."""
        listed, _, shown = self.client.finish(check=False).stdout.partition(f"{self.token}\n")
        return parse_panes(listed, self.socket), parse_screens(self.token, self.named, shown)


def trusting_config(clone: str) -> str:
    """Return a configuration file, which ends with this process, that trusts a clone.

    git before 2.38 wants it in a file: it overlooks safe.directory on its command line.
    """
    fd = os.memfd_create("gitconfig")
    os.write(fd, os.fsencode(f'[safe]\n\tdirectory = "{escape(os.path.realpath(clone))}"\n'))
    return f"/proc/{os.getpid()}/fd/{fd}"


def start_git(clone: str, *args: str, owner: int, options: Sequence[str] = ()) -> Program:
    """Start git on a clone without its surprises: no inherited GIT_*, no prompt, no helper.

    `owner` is the clone's uid: root's is trusted for this one command, nobody else's.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(GIT_TERMINAL_PROMPT="0", GIT_OPTIONAL_LOCKS="0", GIT_NO_LAZY_FETCH="1", LC_ALL="C")
    env.update(GIT_ASKPASS="true", SSH_ASKPASS_REQUIRE="never", GCM_INTERACTIVE="never")
    if owner != os.getuid():
        env["GIT_CONFIG_GLOBAL"] = trusting_config(clone)
    quiet = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *options]
    if args[0] == "show":
        quiet += ["-c", "protocol.allow=never"]
    argv = ["git", "-C", clone, *quiet, *args]
    return Program(argv, label=f"git {args[0]}", env=env).give("")


def read_git_config(clone: str, pattern: str) -> dict[str, str]:
    """Return what git's configuration has in a clone of ours, by key.  Raises Failure."""
    asked = start_git(clone, "config", "--null", "--get-regexp", pattern, owner=os.getuid())
    entries = (e.partition("\n") for e in asked.finish(check=False).stdout.split("\0"))
    return {key: value for key, _, value in entries if key}


def manager_state(*user: str) -> str:
    """Return the word of systemctl is-system-running, or "" where there is no answer.

    Only "stopping" matters; its exit status is the same as for "degraded".  Seen: 252.
    """
    try:
        done = run(["systemctl", *user, "is-system-running"], check=False, timeout=MANAGER_TIMEOUT)
    except Failure:
        return ""
    return (done.stdout.split() or [""])[0]


def scope_state() -> str:
    """Return the state of the scope this process lives in, or "" where there is none."""
    cgroup = read_file("/proc/self/cgroup").strip().rpartition("::")[2]
    unit = os.path.basename(cgroup)
    if not unit.endswith(".scope") or "/user@" not in cgroup:
        return ""
    argv = ["systemctl", "--user", "show", "-p", "ActiveState", "--value", unit]
    try:
        return run(argv, check=False, timeout=MANAGER_TIMEOUT).stdout.strip()
    except Failure:
        return ""


def scope_argv(unit: str, *properties: str) -> list[str]:
    """Return the systemd-run prefix that starts a command in a scope of its own."""
    options = [f"--property={p}" for p in properties]
    return ["systemd-run", "--user", "--scope", "--quiet", "--collect", f"--unit={unit}", *options]


# ---- Reading the world ----------------------------------------------------


def boot_id() -> str:
    """Return this boot's id.  Source: random(4)."""
    return read_file("/proc/sys/kernel/random/boot_id").strip()


HIDDEN = "hidden"


def process_start(pid: int) -> str:
    """Return a live process's start time (field 22 of its stat), "" when there is none.

    A thread id, a zombie and a process that is being removed are not live.  Of another user's
    process nothing may be seen but that it is there (proc(5), hidepid=1): HIDDEN.
    """
    try:
        state, _, _, _, start = parse_stat(read_file(f"/proc/{pid}/stat"))
        if state in "ZXx":
            return ""
        status = read_file(f"/proc/{pid}/status")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except PermissionError:
        return HIDDEN
    except ValueError:
        raise Failure(f"/proc/{pid}/stat cannot be read") from None
    return start if f"\nTgid:\t{pid}\n" in status else ""


def process_parents(pid: int) -> list[int]:
    """Return the ancestors of a process, the nearest first."""
    parents: list[int] = []
    while pid > 1 and len(parents) < 100:
        try:
            pid = parse_stat(read_file(f"/proc/{pid}/stat"))[1]
        except (OSError, ValueError):
            break
        parents.append(pid)
    return parents


def supervisor_lives(run_: Supervisor, boot: str) -> bool:
    """Tell whether the process that a .run file names is still that process."""
    if run_.boot != boot:
        return False
    try:
        state, _, _, _, start = parse_stat(read_file(f"/proc/{run_.pid}/stat"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # another user's is not ours
        return False
    except ValueError:
        raise Failure(f"/proc/{run_.pid}/stat cannot be read") from None
    return start == run_.start and state not in "ZXx"


def is_agent(pid: int) -> bool:
    """Tell whether a process, or what its terminal shows, is a claude by its name."""
    try:
        shown = parse_stat(read_file(f"/proc/{pid}/stat"))[3]
        for each in {pid, shown if shown > 0 else pid}:
            words = read_file(f"/proc/{each}/cmdline").split("\0")[:2]
            if "claude" in (read_file(f"/proc/{each}/comm").strip(), *map(os.path.basename, words)):
                return True
    except (OSError, ValueError):
        return False
    return False


def process_began(pid: int) -> float:
    """Return when a live process began, as wall-clock seconds by the kernel's own boot time."""
    start = process_start(pid)
    if start in ("", HIDDEN):
        return 0.0
    lines = read_file("/proc/stat", 1 << 24).splitlines()
    booted = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + int(start) / os.sysconf("SC_CLK_TCK")


def writes_as(pid: int, path: str) -> bool:
    """Tell whether a process runs as the user whose a file is."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.stat(path).st_uid
    except FileNotFoundError:
        return False


def read_record(path: str) -> Record | None:
    """Return one session record with its age and whether its process lives, None for none.

    Raises ValueError when it is half-written or hidden.
    """
    try:
        text = read_file(path)
        seen = os.stat(path).st_mtime
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ValueError(str(e)) from None
    record = parse_record(text)
    start = process_start(record.pid)
    alive = start == record.start != "" or (start == HIDDEN and writes_as(record.pid, path))
    if not record.start:  # no older than its process, it may be its own
        alive = 0 < process_began(record.pid) <= seen + 2
    return record._replace(seen=seen, alive=alive)


def read_whole(paths: Iterable[str]) -> tuple[list[Record], list[str]]:
    """Return the session records in these files, and the files that stay half-written.

    Claude rewrites them in place and offers nothing to wait on; all are given one wait.
    """
    found, torn = [], list(paths)
    for pause in (0.0, 0.004, 0.008, 0.012, 0.016, 0.02):
        if torn:
            time.sleep(pause)
        asked, torn = torn, []
        for path in asked:
            try:
                record = read_record(path)
            except ValueError:
                torn.append(path)
                continue
            if record is not None:
                found.append(record)
    return found, torn


def peek_record(path: str) -> Record | None:
    """Return one session record, None also for one that cannot be read."""
    found, _ = read_whole([path])
    return found[0] if found else None


def is_being_written(path: str) -> bool:
    """Tell whether an unreadable record may be the work of a live process: it is not older."""
    pid = os.path.basename(path).partition(".")[0]
    written, text = time.time(), ""
    try:
        written, text = os.stat(path).st_mtime, read_file(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # it is there, and hidden from us
    if not pid.isdecimal() or (text and not text.strip("\0")):
        return False  # NULs are what a power cut leaves
    if process_start(int(pid)) == HIDDEN:
        return writes_as(int(pid), path)
    began = process_began(int(pid))
    return began > 0 and written >= began - 2


def read_records(claude: str) -> tuple[tuple[Record, ...], str]:
    """Return Claude's own session records, dead processes' too, and what stays unclear, or "".

    Raises Failure when the folder is there and cannot be listed.
    """
    folder = f"{claude}/sessions"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return (), ""
    except OSError as e:
        raise Failure(f"{folder}: {e.strerror}") from None
    found, torn = read_whole(f"{folder}/{name}" for name in names if name.endswith(".json"))
    written = [path for path in torn if is_being_written(path)]
    return tuple(found), f"{written[-1]} cannot be read and its process lives" if written else ""


def read_lines(path: str) -> Iterator[dict[str, object]]:
    """Yield the good records of a transcript; NULs before one are a power cut's.  Raises OSError.

    Of a line longer than LINE_MAX, as a hole of gigabytes is one, only the end can be good.
    """
    with open(open_file(path), "rb") as f:
        for line in iter(lambda: f.readline(LINE_MAX), b""):
            line = line.lstrip(b"\0")
            try:
                yield parse_object(line.decode("utf-8", "replace")) if line[:1] == b"{" else {}
            except ValueError:
                continue


def is_conversation(path: str) -> bool:
    """Tell whether a transcript holds a record that claude --resume accepts.

    It takes one good line of these types, whatever damage stands around it, and refuses a
    file that is missing, empty, all NULs, or holds only side chains.  Raises OSError.
    Seen: 2.1.332; the first record of a transcript may be 400 kB long.
    """
    records = read_lines(path)
    return any(r.get("type") in CONVERSATION and r.get("isSidechain") is not True for r in records)


class Transcripts(NamedTuple):
    """What the disk says about conversations."""

    resumable: Mapping[str, bool]
    moved: Mapping[str, str]
    trouble: str  # why none could be looked up, or ""
    unreadable: Mapping[str, str]  # why one could not be read


def read_successor(path: str) -> str:
    """Return the conversation that goes on with this one in the background, or "".

    Claude's last line of a transcript it moved: type continued-in.  Raises OSError.
    Seen: 2.1.332.
    """
    with open(open_file(path), "rb") as f:
        f.seek(max(0, os.fstat(f.fileno()).st_size - 65536))
        for line in reversed(f.read().splitlines()):
            if b'"continued-in"' not in line:
                continue
            try:
                successor = parse_object(line.decode("utf-8", "replace"))["continuedInSessionId"]
            except (ValueError, KeyError):
                continue
            return successor if isinstance(successor, str) and is_session_id(successor) else ""
    return ""


def read_transcripts(claude: str, ids: Iterable[str]) -> Transcripts:
    """Return which conversations can be resumed, and which went on under another id.

    Looked up by name: Claude's encoding of folder names is not ours to repeat.
    """
    found: dict[str, bool] = {}
    moved: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    wanted = sorted(set(ids))
    root = f"{claude}/projects"
    try:
        folders = os.listdir(root)
    except OSError as e:
        return Transcripts({}, {}, f"{root}: {e.strerror}; conversations cannot be looked up", {})
    while wanted:
        session_id = wanted.pop()
        for folder in folders:
            path = f"{root}/{folder}/{session_id}.jsonl"
            try:
                found[session_id] = found.get(session_id, False) or is_conversation(path)
                successor = read_successor(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                unreadable[session_id] = f"{path}: {e.strerror}"
                continue
            if successor and successor not in found:
                moved[session_id] = successor
                wanted.append(successor)
    moved = {old: new for old, new in moved.items() if found.get(new)}
    return Transcripts(found, moved, "", unreadable)


def read_jobs(claude: str) -> dict[str, str]:
    """Return the conversations that Claude's background jobs keep, with the jobs' short ids.

    A job that was not stopped refuses to be resumed elsewhere, alive or dead (2.1.332).
    """
    folder = f"{claude}/jobs"
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    found = {}
    for name in names:
        try:
            job = parse_object(read_file(f"{folder}/{name}/state.json"))
        except (OSError, ValueError):
            continue
        if job.get("state") != "stopped" and isinstance(job.get("sessionId"), str):
            found[str(job["sessionId"])] = name
    return found


def tmux_default(environ: Mapping[str, str]) -> str:
    """Return the socket that a plain tmux would use.  Source: tmux(1), TMUX_TMPDIR."""
    for base in (environ.get("TMUX_TMPDIR"), "/tmp"):
        if base and os.path.isdir(base):
            return f"{os.path.realpath(base)}/tmux-{os.getuid()}/default"
    raise Failure("tmux: /tmp does not exist")


def leads_nowhere(path: str) -> bool:
    """Tell whether a missing file, or a folder above it, is a link whose target is not there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return not os.path.exists(path)


def load_config_copy(copy: str, why: str) -> tuple[Config, tuple[str, ...], bool]:
    """Return the last good configuration after `why`."""
    try:
        values, _ = parse_config(read_state(copy))
    except Failure:
        bare = choose_config({})._replace(start_args=(), open_args=(), bare=True)
        return bare, (f"{why}; defaults without any permission argument are used",), True
    return choose_config(values), (f"{why}; the last good copy is used",), True


def load_config(paths: Paths) -> tuple[Config, tuple[str, ...], bool]:
    """Return the configuration, what to warn of, and whether it is broken.

    A broken config.json leaves the last good copy in force; without a copy no
    permission argument is ever passed.
    """
    path, copy = f"{paths.config}/config.json", paths.of("config", "json")
    try:
        text = read_file(path)
    except FileNotFoundError:
        if leads_nowhere(path):
            return load_config_copy(copy, f"{path}: it is behind a link that leads nowhere")
        return choose_config({}), (), False
    except OSError as e:
        return load_config_copy(copy, f"{path}: {e.strerror}")
    try:
        values, unknown = parse_config(text)
    except Failure as e:
        return load_config_copy(copy, str(e))
    try:
        if read_state(copy) != text:
            write_atomic(copy, text)
    except (OSError, Failure) as e:
        unknown = (*unknown, f"config.json: no copy could be kept: {e}")
    return choose_config(values), unknown, False


def read_registry(paths: Paths) -> tuple[tuple[Spec, ...], tuple[str, ...]]:
    """Return the sessions opened by hand, and complaints about bad rows."""
    return parse_rows(read_state(f"{paths.state}/registry.tsv", torn=True), declared=False)


def read_manifest(path: str) -> str:
    """Return a manifest that is a plain file.  Raises Failure."""
    try:
        return read_file(path, 1 << 24)
    except OSError as e:
        raise Failure(f"manifest {path}: {e.strerror}") from None


def read_owner(clone: str) -> int:
    """Return whose a clone is: ours, or root's.  Raises Failure for anybody else's.

    Its .git can be a stranger's in a folder that root lets others write to.
    """
    inside = f"{clone}/.git"
    try:
        owners = [os.stat(clone).st_uid]
        if os.path.lexists(inside):
            owners += [os.lstat(inside).st_uid, os.stat(inside).st_uid]
        if os.path.isfile(inside):  # of a work tree: it names the real one
            named = read_file(inside, 4096).partition("gitdir:")[2].split("\0")[0].strip()
            owners.append(os.stat(os.path.join(clone, named)).st_uid)
    except OSError as e:
        raise Failure(f"manifest clone {clone}: {e.strerror}") from None
    if not {*owners} <= {0, os.getuid()}:
        hint = f"git clone {clone} ~/manifest"
        raise Failure(f"manifest clone {clone}: it belongs to another user", hint=hint)
    return next((uid for uid in owners if uid != os.getuid()), os.getuid())


def start_manifest(config: Config) -> Program:
    """Start git on the manifest's clone.  Raises Failure."""
    if config.ref.startswith("-"):
        raise Failure(f"manifest.ref: {config.ref!r} is no ref of git")
    owner = read_owner(config.clone)
    return start_git(config.clone, "show", f"{config.ref}:{config.path}", owner=owner)


def ask_manifest(config: Config) -> Callable[[], str]:
    """Ask for the manifest as it stands; return what waits for it and raises Failure."""
    if config.file:
        return lambda: read_manifest(config.file)
    if not config.clone:
        return str
    try:
        asked = start_manifest(config)
    except Failure as e:
        why = e

        def refuse() -> str:
            raise why

        return refuse
    return lambda: asked.finish(timeout=GIT_TIMEOUT).stdout


def owner_of(directory: str) -> int:
    """Return the uid of a folder, or of its nearest ancestor where it is gone."""
    while True:
        try:
            return os.stat(directory).st_uid
        except OSError:
            if directory == "/":
                return 0
            directory = os.path.dirname(directory.rstrip("/")) or "/"


def user_name() -> str:
    """Return the name of the user this process runs as."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def own_rows(paths: Paths) -> Callable[[Spec], bool]:
    """Return what tells a manifest row of this user's; no user means the directory's owner.

    Whose a folder is that is not there (a disk that is not mounted) our own files remember.
    """
    uid, me = os.getuid(), user_name()

    def is_mine(spec: Spec) -> bool:
        if spec.user or owner_of(spec.directory) == uid:
            return spec.user in ("", me)
        kept = (paths.of(spec.name, kind) for kind in ("id", "run", "retired"))
        return not os.path.lexists(spec.directory) and any(map(os.path.exists, kept))

    return is_mine


def load_manifest(
    paths: Paths, config: Config, asked: Callable[[], str]
) -> tuple[tuple[Spec, ...], tuple[str, ...], bool]:
    """Return this user's rows, complaints, and whether the last good copy stands in.

    A valid manifest becomes the copy; one that cannot be read, is empty to the byte or
    has no good row among its rows never does.
    """
    if not (config.clone or config.file):
        return (), (), False
    copy = f"{paths.state}/manifest.tsv"
    broken, complaints = False, []
    try:
        text = asked()
        specs, bad = parse_rows(text, declared=True, mine=own_rows(paths))
        if not text or "\0" in text or (bad and not parse_rows(text, declared=True)[0]):
            raise Failure("; ".join(bad) or f"manifest: it {'holds NULs' if text else 'is empty'}")
        try:
            if text != read_state(copy):
                write_atomic(copy, text)
        except OSError as e:
            complaints.append(f"manifest: no copy could be kept: {e.strerror}")
    except Failure as e:
        text = read_state(copy)
        specs, bad = parse_rows(text, declared=True, mine=own_rows(paths))
        broken = True
        instead = f"the last good copy is {'used' if text else 'missing too'}"
        complaints.append(f"{e}; {instead}" + (f" ({e.hint})" if e.hint else ""))
    return specs, (*complaints, *bad), broken


def is_retired(paths: Paths, name: str) -> bool:
    """Tell whether a session was ended on purpose.  Raises Failure.

    Its mark says so; where an older installation or a power cut left an empty one, .exit does.
    """
    path = paths.of(name, "retired")
    if not os.path.lexists(path):
        return False
    return bool(read_state(path).strip()) or parse_deliberate(read_state(paths.of(name, "exit")))


def read_facts(
    paths: Paths,
    name: str,
    directory: str,
    listing: Iterable[str],
    boot: str,
) -> Facts:
    """Return what the state folder and the disk say about one session."""

    def read(kind: str) -> str:
        return read_state(paths.of(name, kind)) if f"{name}.{kind}" in listing else ""

    try:
        run_ = parse_supervisor(read("run"))
        lives = run_ is not None and supervisor_lives(run_, boot)
        ids = parse_ids(read("id"))
        code = 0
        try:
            if not stat.S_ISDIR(os.stat(directory).st_mode):
                code = errno.ENOTDIR
        except OSError as e:
            code = e.errno or errno.EIO
        folder = classify_folder(code, os.strerror(code))
        kept = run_.claude_home if run_ is not None else ""
        if kept != paths.claude and os.path.realpath(kept) == os.path.realpath(paths.claude):
            kept = paths.claude
        if folder == "ok" and kept not in ("", paths.claude) and os.path.isdir(kept):
            folder = f"its conversations are in {kept} (set CLAUDE_CONFIG_DIR to it), not here"
        return Facts(
            ids,
            os.stat(paths.of(name, "id")).st_mtime if ids else 0.0,
            run_,
            lives,
            parse_event(read("event")),
            parse_health(read("health")),
            f"{name}.retired" in listing and is_retired(paths, name),
            folder,
        )
    except Failure as e:
        return Facts(trouble=str(e))
    except OSError as e:
        return Facts(trouble=f"{e.filename}: {e.strerror}")


def physical(specs: Iterable[Spec]) -> tuple[Spec, ...]:
    """Return rows with their directories as the kernel names them."""
    parents: dict[str, str] = {}  # most rows share a few
    found = []
    for spec in specs:
        parent, name = os.path.split(spec.directory)
        if parent not in parents:
            parents[parent] = os.path.realpath(parent).rstrip("/")
        path = f"{parents[parent]}/{name}"
        plain = name not in ("", ".", "..") and not os.path.islink(path)
        path = path if plain else os.path.realpath(spec.directory)
        found.append(spec if path == spec.directory else spec._replace(directory=path))
    return tuple(found)


def live_runs(facts: Mapping[str, Facts]) -> list[Supervisor]:
    """Return the supervisors that live."""
    return [f.run for f in facts.values() if f.run and f.run_live]


def has_terminal(pid: int) -> bool:
    """Tell whether a process has a terminal: what is hung up has none any more."""
    try:
        return parse_stat(read_file(f"/proc/{pid}/stat"))[3] > 0
    except (OSError, ValueError):
        return False


def read_sockets(config: Config, runs: Iterable[Supervisor]) -> tuple[str, ...]:
    """Return the tmux sockets in use, the one for new sessions first.

    A live session's socket wins over the environment, so that a login shell and the
    unit cannot disagree about where sessions live.
    """
    live = [run_.socket for run_ in runs if run_.socket]
    first = config.socket or (max(live, key=live.count) if live else tmux_default(os.environ))
    return tuple(dict.fromkeys((first, *live)))


def read_panes(sockets: Sequence[str]) -> tuple[tuple[Pane, ...], str]:
    """Return the panes of every server, and why one could not be asked, or ""."""
    panes: list[Pane] = []
    blind = ""
    for socket in sockets:
        try:
            panes += Tmux(socket).panes() or ()
        except Failure as e:
            blind = str(e)
    return tuple(panes), blind


def is_readable(pane: Pane) -> bool:
    """Tell whether a pane's screen is large enough to be judged."""
    return not pane.dead and pane.width >= READABLE[0] and pane.height >= READABLE[1]


def read_screens(panes: Iterable[Pane]) -> dict[str, Screen]:
    """Return what holds or asks in each pane that is large enough to judge."""
    by_socket: dict[str, dict[str, str]] = {}
    for pane in panes:
        if is_readable(pane):
            by_socket.setdefault(pane.socket, {})[pane.pane_id] = pane.key
    found: dict[str, Screen] = {}
    for socket, keys in by_socket.items():
        for pane_id, text in Tmux(socket).screens(list(keys)).items():
            screen = classify_screen(text)
            if screen is not None:
                found[keys[pane_id]] = screen
    return found


def read_claudes(panes: Iterable[Pane], records: Iterable[Record]) -> frozenset[str]:
    """Return the panes in which a claude lives, by its record or else by its name."""
    by_pid = {pane.pid: pane.key for pane in panes if not pane.dead}
    found = set()
    for record in records:
        if record.alive and by_pid:
            line = (record.pid, *process_parents(record.pid))
            found |= {by_pid[pid] for pid in line if pid in by_pid}
    found |= {key for pid, key in by_pid.items() if key not in found and is_agent(pid)}
    return frozenset(found)


def load_set(
    paths: Paths, config: Config, asked: Callable[[], str]
) -> tuple[tuple[Spec, ...], tuple[str, ...], bool]:
    """Return the restore set (retired rows included), complaints, and whether it is broken."""
    declared, complaints, broken = load_manifest(paths, config, asked)
    opened, bad = read_registry(paths)
    declared, opened = physical(declared), physical(opened)
    clashes = choose_clashes(declared, opened)
    taken = tuple(
        f"manifest: {name} is open in {directory}, so the row of that name is left out; "
        f"to move its conversation to the row's folder: {PROG} retire {name}; {PROG} start {name}"
        for name, directory in clashes.items()
    )
    specs = restore_set((d for d in declared if d.name not in clashes), opened)
    return specs, (*complaints, *bad, *taken), broken


def index_panes(panes: Iterable[Pane]) -> dict[int, list[Pane]]:
    """Return the panes that are not dead by their process."""
    found: dict[int, list[Pane]] = {}
    for pane in panes:
        if not pane.dead:
            found.setdefault(pane.pid, []).append(pane)
    return found


class Traces(NamedTuple):
    """What Claude's own folder says, as far as it was asked."""

    records: tuple[Record, ...] = ()
    unclear: str = ""
    claudes: frozenset[str] = frozenset()
    disk: Transcripts = Transcripts({}, {}, "", {})
    jobs: Mapping[str, str] = {}


def read_traces(
    claude: str, lone: Sequence[Spec], facts: Mapping[str, Facts], panes: Iterable[Pane]
) -> Traces:
    """Return Claude's records and, for the sessions without a supervisor, what else decides."""
    records, unclear = read_records(claude)
    mine = {spec.name for spec in lone}
    claudes = read_claudes([p for p in panes if p.session in mine], records)
    ids = {i for s in lone for i in (*choose_witnesses(s, facts[s.name], records), s.pin) if i}
    if not ids:
        return Traces(records, unclear, claudes)
    return Traces(records, unclear, claudes, read_transcripts(claude, ids), read_jobs(claude))


def read_retired(paths: Paths, name: str) -> Spec | None:
    """Return the row in a mark that no other row is left of, None where it cannot be read."""
    try:
        return parse_retired(name, read_state(paths.of(name, "retired")))
    except Failure as e:
        tell(str(e), 4)
        return None


def choose_rowless(
    names: Iterable[str], rows: Sequence[Spec], listing: frozenset[str]
) -> list[str]:
    """Return the names that no row has or had before it was renamed, and no mark."""
    known = {name for spec in rows for name in (spec.name, spec.renamed)}
    return sorted(n for n in names if n not in known and f"{n}.retired" not in listing)


def read_own_row(name: str, run_: Supervisor) -> Spec:
    """Return a row for a session that has none; its supervisor is in its folder."""
    link = f"/proc/{run_.pid}/cwd"
    try:
        directory = os.readlink(link)
        removed = directory.endswith(" (deleted)") and not os.stat(link).st_nlink
        return Spec(name, directory[: -len(" (deleted)")] if removed else directory)
    except OSError:
        return Spec(name, "")


def find_rowless(paths: Paths, name: str, boot: str) -> Spec | None:
    """Return a row for the session of this name that lives without one, None where none does."""
    run_ = None if classify_name(name) else parse_supervisor(read_state(paths.of(name, "run")))
    lives = run_ is not None and supervisor_lives(run_, boot)
    return read_own_row(name, run_) if run_ is not None and lives else None


def read_rowless(
    paths: Paths, specs: Sequence[Spec], listing: frozenset[str], boot: str
) -> list[Spec]:
    """Return the sessions that live although no row names them (any more)."""
    names = choose_rowless((n[:-4] for n in listing if n.endswith(".run")), specs, listing)
    found = {}
    for name in names:
        try:
            spec = find_rowless(paths, name, boot)
        except Failure as e:
            tell(str(e), 4)
            continue
        if spec is not None:
            found[name] = spec
    # What was opened since the rows were read has one now.
    rows = read_registry(paths)[0] if found else ()
    return [found[name] for name in choose_rowless(found, rows, listing)]


def read_world(
    paths: Paths,
    config: Config,
    specs: Sequence[Spec],
    *,
    records: bool = False,
    insist: Iterable[str] = (),
) -> World:
    """Take the one snapshot that a plan is made from.

    Records and transcripts are read only when a session has no live supervisor, or when
    `records` asks for them: a tick with nothing to do reads as little as it can.
    """
    try:
        listing = frozenset(os.listdir(paths.state))
    except FileNotFoundError:
        listing = frozenset()
    except OSError as e:
        raise Failure(f"{paths.state}: {e.strerror}") from None
    boot = boot_id()
    names = {spec.name for spec in specs}
    gone = sorted(n[:-8] for n in listing if n.endswith(".retired") and n[:-8] not in names)
    gone = [name for name in gone if not classify_name(name)]
    marks = (read_retired(paths, name) for name in gone)
    retired = physical(spec for spec in marks if spec and spec.directory)
    left = (*retired, *read_rowless(paths, specs, listing, boot))
    facts = {s.name: read_facts(paths, s.name, s.directory, listing, boot) for s in (*specs, *left)}
    panes, blind = read_panes(read_sockets(config, live_runs(facts)))
    wanted = [s for s in specs if s.name in insist or not facts[s.name].retired]
    lone = [s for s in wanted if not facts[s.name].run_live]
    deaf = any(f.run_live and f.event is None for f in facts.values())
    asked = records or lone or insist or deaf
    traces = read_traces(paths.claude, lone, facts, panes) if asked else Traces()
    runs = {run_.pid for run_ in live_runs(facts)}
    shown = [p for p in panes if p.pid in runs or p.session in names]
    unseen = runs.difference(p.pid for p in panes)
    return World(
        tuple(specs),
        left,
        facts,
        panes,
        index_panes(panes),
        read_screens(shown),
        traces.claudes,
        traces.records,
        traces.disk.resumable,
        traces.disk.moved,
        traces.jobs,
        blind,
        traces.disk.trouble,
        traces.unclear,
        time.time(),
        frozenset(insist),
        traces.disk.unreadable,
        frozenset(filter(has_terminal, unseen)),
    )


class Glance(NamedTuple):
    """What was looked at while git read the manifest, and what tmux was asked."""

    listing: frozenset[str]
    runs: Mapping[str, Supervisor]  # those that live
    asked: Sequence[Asking]  # those on which sessions live; any other answer is left alone


def read_runs(paths: Paths, listing: Iterable[str], boot: str) -> dict[str, Supervisor]:
    """Return the supervisors of this boot by name, whether they live or not.  Raises Failure."""
    names = [entry[:-4] for entry in listing if entry.endswith(".run")]
    found = {name: parse_supervisor(read_state(paths.of(name, "run"))) for name in names}
    return {name: run_ for name, run_ in found.items() if run_ is not None and run_.boot == boot}


def read_glance(paths: Paths, config: Config) -> Glance | None:
    """Find the supervisors that live and ask tmux what they show; None where that is unclear.

    The usual server is asked at once: its client is up by the time the files are read, and
    it has its answer by the time the processes are looked at.
    """
    asked: dict[str, Asking] = {}
    panes: dict[str, list[str]] = {}
    try:
        usual = config.socket or tmux_default(os.environ)
        asked[usual] = Asking(usual)
        listing, boot = frozenset(os.listdir(paths.state)), boot_id()
        runs = read_runs(paths, listing, boot)
        for run_ in runs.values():
            panes.setdefault(run_.socket, []).append(run_.pane)
        for socket in panes:
            asked[socket] = asked.get(socket) or Asking(socket)
    except (OSError, Failure):
        return None  # read_world says what it is
    finally:
        for socket, asking in asked.items():
            asking.show([*filter(None, panes.get(socket, ()))])
    try:
        runs = {name: run_ for name, run_ in runs.items() if supervisor_lives(run_, boot)}
    except (OSError, Failure):
        return None
    live = dict.fromkeys(run_.socket for run_ in runs.values())
    return Glance(listing, runs, [asked[socket] for socket in live]) if runs else None


def read_steady(paths: Paths, specs: Sequence[Spec], glance: Glance) -> World | None:
    """Return the world where every session's supervisor lives, else None.

    That is what nearly every tick finds: two programs and two small files a session.  A
    server that says nothing would say nothing if it were asked again.
    """
    panes: list[Pane] = []
    shown: dict[str, str] = {}
    facts, listing = {}, glance.listing
    try:
        for name in (spec.name for spec in specs):
            run_ = glance.runs.get(name)
            retired = f"{name}.retired" in listing and is_retired(paths, name)
            heard = f"{name}.event" in listing  # else no hook files what it says
            if not retired and not (run_ and heard):
                return None
            noted = read_state(paths.of(name, "health")) if f"{name}.health" in listing else ""
            facts[name] = Facts(
                run=run_, run_live=run_ is not None, health=parse_health(noted), retired=retired
            )
        for asking in glance.asked:
            listed, texts = asking.answer()
            panes += listed
            shown.update({p.key: texts[p.pane_id] for p in listed if p.pane_id in texts})
    except NoAnswer as e:
        return World(tuple(specs), facts=facts, blind=str(e), now=time.time())
    except Failure:
        return None
    by_pid = index_panes(panes)
    lived = [by_pid.get(run_.pid, ()) for run_ in live_runs(facts)]
    keys = [pane.key for panes_ in lived for pane in panes_ if is_readable(pane)]
    if not all(lived) or not all(key in shown for key in keys):
        return None
    screens = {key: classify_screen(shown[key]) for key in keys}
    rowless = choose_rowless(glance.runs, specs, listing)
    facts.update({name: Facts(run=glance.runs[name], run_live=True) for name in rowless})
    return World(
        tuple(specs),
        tuple(read_own_row(name, glance.runs[name]) for name in rowless),
        facts=facts,
        panes=tuple(panes),
        by_pid=by_pid,
        screens={key: screen for key, screen in screens.items() if screen is not None},
        now=time.time(),
    )


# ---- Changing the world ---------------------------------------------------


def make_state(paths: Paths) -> None:
    """Make the state folder, private to its user.  Raises Failure when it is somebody else's."""
    try:
        os.makedirs(os.path.dirname(paths.state), exist_ok=True)
        if not os.path.isdir(paths.state):
            os.mkdir(paths.state, 0o700)
        seen = os.stat(paths.state)
        if seen.st_uid != os.getuid():
            why = f"it belongs to another user (uid {seen.st_uid})"
            raise Failure(f"{paths.state}: {why}", hint=f"ls -ld {paths.state}")
        if seen.st_mode & 0o777 != 0o700:  # an odd umask, or somebody's hand
            os.chmod(paths.state, 0o700)
    except OSError as e:
        raise Failure(f"{paths.state}: {e.strerror}", hint=f"ls -ld {paths.state}") from None


def give_up(_signal: int, _frame: object) -> None:
    """Break off a wait for the lock; the handler of SIGALRM."""
    raise TimeoutError


def take_lock(paths: Paths, wait: float = LOCK_WAIT) -> int:
    """Take the one lock of the state folder and return its descriptor; closing it gives it back.

    flock, not a pid file: the kernel releases it whatever kills us.  Raises Failure.
    Where the state folder is read-only or has no flock the runtime folder holds the lock.
    """
    for folder in (paths.state, paths.runtime):
        if not folder:
            break
        path = f"{folder}/lock" if folder == paths.state else f"{folder}/{PROG}.lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as e:
            if e.errno != errno.EROFS:
                raise
            continue
        before = signal.signal(signal.SIGALRM, give_up)
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, wait)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            return fd
        except TimeoutError:
            os.close(fd)
            raise Failure(f"{folder}/lock: another run holds it for more than {wait:g} s") from None
        except OSError as e:
            os.close(fd)
            if e.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL):
                raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.signal(signal.SIGALRM, before)
    raise Failure(f"{paths.state}/lock: no lock can be taken here, nor in a runtime folder")


def with_lock(paths: Paths, act: Callable[[], object], wait: float = LOCK_WAIT) -> None:
    """Do a short thing under the lock.  Raises Failure, also in place of OSError."""
    try:
        fd = take_lock(paths, wait)
        try:
            act()
        finally:
            os.close(fd)
    except OSError as e:
        path = e.filename or paths.state
        raise Failure(f"{path}: {e.strerror}", hint=f"ls -ld {path}") from None


def sweep(folder: str, of: str = "") -> None:
    """Remove temporary files of writers that died, of one file or all; what refuses waits."""
    try:
        for name in os.listdir(folder):
            parts = name.split(".")
            ours = name.startswith(f".{of}") and parts[-1] == "tmp" and len(parts) > 3
            if ours and parts[-3].isdecimal() and not process_start(int(parts[-3])):
                remove(f"{folder}/{name}")
    except OSError:
        return


def record_id(paths: Paths, name: str, session_id: str) -> None:
    """Put a conversation id at the head of a session's .id file; the older ones stay.

    Hooks take turns on the folder itself, for a second at most; they never take the lock.
    """
    path, folder = paths.of(name, "id"), os.open(paths.state, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(100):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)  # waiting without end could hold up a session
        ids = parse_ids(read_state(path))
        if ids[:1] != (session_id,):
            kept = [i for i in ids if i != session_id]
            while len(kept) >= MAX_IDS:  # restarts with nothing said must not push out what was
                said = read_transcripts(paths.claude, kept).resumable
                empty = [i for i in kept[1:] if not said.get(i)]
                kept.remove((empty or kept)[-1])
            write_atomic(path, "".join(f"{i}\n" for i in (session_id, *kept)))
    finally:
        os.close(folder)


def edit_registry(paths: Paths, change: Callable[[dict[str, Spec]], None]) -> None:
    """Change the registry's rows; bad rows stay as they are.  Call it under the lock."""
    path = f"{paths.state}/registry.tsv"
    text = read_state(path, torn=True)
    specs, bad = parse_rows(text, declared=False)
    rows = {spec.name: spec for spec in specs}
    change(rows)
    numbers = {int(complaint.split(":")[0].split()[-1]) for complaint in bad}
    kept = [line for at, line in enumerate(text.split("\n"), 1) if at in numbers]
    new = format_registry(rows.values()) + "".join(f"{line}\n" for line in kept)
    if new != text:
        write_atomic(path, new)


def register(paths: Paths, spec: Spec) -> None:
    """Add or replace a registry row.  Call it under the lock."""
    edit_registry(paths, lambda rows: rows.update({spec.name: spec}))


def unregister(paths: Paths, names: Iterable[str]) -> None:
    """Drop registry rows.  Call it under the lock."""

    def drop(rows: dict[str, Spec]) -> None:
        for name in names:
            rows.pop(name, None)

    edit_registry(paths, drop)


def retire(paths: Paths, spec: Spec, how: str) -> None:
    """Mark a session as ended on purpose; its row stays in the mark, its ids stay filed."""
    write_atomic(paths.of(spec.name, "retired"), format_retired(spec, how, iso(time.time())))


def find_member(text: str, at: int, key: str) -> tuple[tuple[int, int] | None, int, str]:
    """Find a member of the JSON object that starts at `at`.

    Returns the span of its value (of the last, where a key stands twice) or None, the end
    of the object's last value (or its start), and the white space before its first key.
    The text must be valid JSON.
    """
    import json

    decoder = json.JSONDecoder(strict=False)
    blank = " \t\r\n"

    def skip(i: int) -> int:
        while text[i] in blank:
            i += 1
        return i

    span, last, i = None, at + 1, skip(at + 1)
    space = text[at + 1 : i]
    while text[i] != "}":
        name, i = decoder.raw_decode(text, i)
        start = skip(skip(i) + 1)
        _, last = decoder.raw_decode(text, start)
        if name == key:
            span = (start, last)
        i = skip(last)
        if text[i] == ",":
            i = skip(i + 1)
    return span, last, space


def set_member(text: str, keys: Sequence[str], value: object) -> str:
    """Return a JSON text with one value set and every other byte as it was.

    Raises ValueError when it is no JSON object, or when a key on the way is none, and
    RecursionError for one that is nested too deeply.
    """
    import json

    body = text.lstrip("\ufeff")
    if not isinstance(json.loads(body, strict=False), dict):
        raise ValueError("not an object")
    at = text.index("{")
    for depth, key in enumerate(keys):
        span, last, space = find_member(text, at, key)
        if span is None:
            for inner in reversed(keys[depth + 1 :]):
                value = {inner: value}
            comma = "," if last > at + 1 else ""
            member = f"{comma}{space}{json.dumps(key)}: {json.dumps(value)}"
            return text[:last] + member + text[last:]
        at = span[0]
        if depth == len(keys) - 1:
            return text[: span[0]] + json.dumps(value) + text[span[1] :]
        if text[at] != "{":
            raise ValueError(f"{key!r} is not an object")
    raise ValueError("no key")


def exchange(one: str, other: str) -> None:
    """Swap two files in one step.  Raises OSError.  Source: renameat2(2), RENAME_EXCHANGE."""
    import ctypes

    at_fdcwd, rename_exchange = -100, 2  # <fcntl.h>, <linux/fs.h>
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        call = libc.renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one) from None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if call(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), one, None, other)


def replace_expected(path: str, old: str | None, new: str) -> bool:
    """Replace a file only if it still holds `old` (None: is missing); False when it does not.

    The swap shows what was really replaced, so a writer that takes no lock loses nothing
    (looked at just before as well: it could read ours in the moment until we swap back).
    """
    temporary = write_temporary(path, new, mode_of(path, 0o600))
    try:
        if old is not None and read_file(path, 1 << 28) != old:
            return False
        try:
            os.link(temporary, path) if old is None else exchange(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # many file systems know no links or no swap; EPERM and others say so
            if os.path.lexists(path) if old is None else read_file(path, 1 << 28) != old:
                return False
            os.rename(temporary, path)
            return True
        if old is not None and read_file(temporary, 1 << 28) != old:
            exchange(temporary, path)
            return False
    finally:
        remove(temporary)
        sync_folder(os.path.dirname(path))
    return True


def take_claude_lock(path: str) -> str:
    """Take Claude's own lock on a file, a folder beside it, and return it.

    Claude 2.1.332 makes and removes it around each write and takes over one that was left
    for 10 s, as we do.  Raises Failure after 11 s.
    """
    lock = f"{path}.lock"
    for attempt in range(120):
        try:
            os.mkdir(lock)
            return lock
        except FileExistsError:
            try:
                if abs(time.time() - os.stat(lock).st_mtime) > 10:  # a clock may be set back
                    os.rmdir(lock)
            except FileNotFoundError:
                continue
        time.sleep(min(0.01 * 1.3**attempt, 0.1))  # mkdir locks offer nothing to wait on
    raise Failure(f"{lock}: Claude holds it", hint=f"ls -ld {lock}")


def edit_json(path: str, keys: Sequence[str], value: object) -> bool:
    """Set one value in a JSON file of Claude's; False when it has that value already.

    Every other byte stays.  Raises Failure, with nothing written, when the file does not
    parse (it is read again for a second: Claude may be in the middle of a write).
    """
    if not os.path.exists(path) and leads_nowhere(path):
        raise Failure(f"{path}: it is behind a link that leads nowhere", hint=f"ls -l {path}")
    path = os.path.realpath(path)
    trouble = "it changes all the time"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        lock = take_claude_lock(path)
        try:
            for attempt in range(40):
                try:
                    text = read_file(path, 1 << 28)
                except FileNotFoundError:
                    text = None
                try:
                    new = set_member("{}\n" if text is None else text, keys, value)
                except (ValueError, RecursionError) as e:
                    trouble = str(e)
                    time.sleep(0.025)
                    continue
                if new == text:
                    return attempt > 0
                replace_expected(path, text, new)
        finally:
            os.rmdir(lock)
    except OSError as e:
        raise Failure(f"{path}: {e.strerror}") from None
    raise Failure(f"{path}: {trouble}; nothing was written", hint=f"python3 -m json.tool {path}")


def trust_folder(paths: Paths, directory: str) -> bool:
    """Answer Claude's folder-trust question for a directory beforehand; False if it was.

    Source: projects[DIR].hasTrustDialogAccepted of .claude.json, Claude Code 2.1.332.
    """
    keys = ("projects", directory, "hasTrustDialogAccepted")
    try:
        value = parse_object(read_file(paths.trust, 1 << 28))
        projects = value.get("projects")
        entry = projects.get(directory) if isinstance(projects, dict) else None
        if isinstance(entry, dict) and entry.get(keys[2]) is True:
            return False
    except (OSError, ValueError):
        pass  # edit_json looks again, waits for a writer and words the error
    return edit_json(paths.trust, keys, True)


# ---- Launching ------------------------------------------------------------


def own_module() -> str:
    """Return the folder through which this file can be imported with its compiled cache, or ""."""
    door = os.path.join(os.environ.get("HOME", ""), ".local/lib", PROG)
    here = os.path.realpath(__file__)
    return door if os.path.realpath(f"{door}/persistent_sessions.py") == here else ""


def python() -> str:
    """Return the interpreter for what is installed; equal strings make equal hooks."""
    return USUAL_PYTHON if os.access(USUAL_PYTHON, os.X_OK) else sys.executable


# No collector for so short a life, and no tearing down: together a quarter of a tick's start.
# What `install` compiled for one command (see PARTS) comes first, where it is there.
DOOR = (
    'import gc,sys;gc.disable();sys.path+=["%s/parts/%s","%s"];'
    "import persistent_sessions as m;m.exit_with(m.main())"
)


def own_argv(*args: str) -> list[str]:
    """Return the command line that runs this program: imported where it is installed."""
    door = own_module()
    if not door:
        return [sys.executable, "-IS", os.path.abspath(__file__), *args]
    inner = escape(door)
    return [python(), "-IS", "-c", DOOR % (inner, args[0], inner), *args]


def hook_commands(paths: Paths) -> dict[str, list[str]]:
    """Return the hook command lines of the sessions we launch, by event."""
    import shlex

    ours = shlex.join(own_argv("hook"))
    hooks = {"SessionStart": [ours], "SessionEnd": [ours]}
    door = f"{paths.home}/.local/lib/{PROG}"
    if os.path.exists(f"{door}/task_adopt.py"):
        inner = escape(door)
        code = f'import sys;sys.path.append("{inner}");import task_adopt as m;sys.exit(m.main())'
        hooks["SessionStart"].append(shlex.join([python(), "-IS", "-c", code]))
    return hooks


def write_settings(paths: Paths, name: str) -> str:
    """Write the file for claude --settings where it changed, and return its path."""
    import json

    person = f"{paths.config}/settings.{name}.json"
    try:
        own, path = parse_object(read_file(person)), paths.of(f"hook-settings.{name}", "json")
    except FileNotFoundError:
        if leads_nowhere(person):
            raise Failure(f"{person}: it is behind a link that leads nowhere") from None
        own, path = {}, paths.of("hook-settings", "json")
    except (OSError, ValueError) as e:
        raise Failure(f"{person}: {e}") from None
    try:
        text = json.dumps(session_settings(hook_commands(paths), own), indent=1) + "\n"
    except RecursionError:
        raise Failure(f"{person}: nested too deeply") from None
    if read_state(path) != text:
        write_state(path, text)
    return path


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Return the first executable of a name on PATH that is not this program, or "".

    A shim of ours is known by what it leads to, also when that is another copy.
    """
    for folder in environ.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder or ".", name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            real = os.path.realpath(path)
            if os.path.basename(real) not in OWN_NAMES and real != os.path.realpath(__file__):
                return os.path.abspath(path)
    return ""


def find_claude(paths: Paths, config: Config) -> tuple[str, str]:
    """Return the real claude's path, never resolved through its links, and what to say.

    Raises Failure when there is none.
    """
    known = config.claude or os.environ.get("PS_CLAUDE", "")
    if known and os.access(known, os.X_OK):
        return known, ""
    usual = (f"{paths.home}/.local/bin", f"{paths.home}/.claude/local")
    path = ":".join([*os.environ.get("PATH", os.defpath).split(":"), *usual])
    found = find_program("claude", {"PATH": path})
    if not found:
        raise Failure("claude: not found on PATH", hint=f"{PROG} doctor")
    return found, f"{known} is gone; {found} is used" if known else ""


def job_folder(paths: Paths) -> str:
    """Return a private folder for job files: memory where the user has a runtime folder."""
    if not paths.runtime:
        return paths.state
    folder = f"{paths.runtime}/{PROG}"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return paths.state
    seen = os.lstat(folder)
    good = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o077
    return folder if good else paths.state


def write_job(path: str, job: Job) -> None:
    """Write a job where only its user can read it; tmux never sees what is in it.

    NUL-separated, byte for byte: folder, program, number of words, words, environment.
    """
    pairs = (f"{key}={value}" for key, value in job.env.items() if key)
    fields = (job.directory, job.program, str(len(job.argv)), *job.argv, *pairs)
    text = b"\0".join(map(os.fsencode, fields)).decode("utf-8", "surrogateescape")
    write_atomic(path, text, sync=False)


def read_job(path: str) -> Job:
    """Return a job; who takes it removes the file with its whole environment.  Raises Failure."""
    try:
        raw = read_file(path, 1 << 26).encode("utf-8", "surrogateescape")
        directory, program, count, *rest = map(os.fsdecode, raw.split(b"\0"))
        argv, pairs = rest[: int(count)], rest[int(count) :]
        if not argv or len(argv) != int(count):
            raise ValueError("it is cut short")
        return Job(tuple(argv), directory, dict(p.split("=", 1) for p in pairs), program)
    except OSError as e:
        raise Failure(f"{path}: {e.strerror}", status=BROKEN) from None
    except ValueError as e:
        raise Failure(f"{path}: not a job: {e}", status=BROKEN) from None


def session_job(paths: Paths, config: Config, spec: Spec, resume: str, binary: str) -> Job:
    """Return the command, folder and environment of a session, from this process's own."""
    first = os.environ.get("PS_SESSION_BIN") or f"{paths.config}/bin"
    env = choose_environment(
        os.environ, spec.name, spec.directory, first if os.path.isdir(first) else ""
    )
    args = () if config.bare else config.start_args if spec.declared else spec.args
    remote = spec.name if config.remote_control else ""
    settings = write_settings(paths, spec.name)
    return Job(claude_argv(binary, args, resume, remote, settings), spec.directory, env)


def quote(text: str) -> str:
    """Return a word of a tmux command file; nothing is special in single quotes."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def pane_lines(spec: Spec, resume: str, job: str, panes: Iterable[Pane]) -> str:
    """Return the tmux command line that gives a session its pane, in a new window if it exists."""
    command = " ".join(
        quote(w) for w in own_argv("run", spec.name, *filter(None, [resume]), "--job", job)
    )
    shown = [p for p in panes if p.session == spec.name]
    target = quote(f"={spec.name}:")
    folder = f"-c {quote(spec.directory)} " if "#" not in spec.directory else ""
    options = (
        f"set-option -t {target} destroy-unattached off ; set-option -t {target} {MARK} 1"
        f" ; set-option -w -t {target} remain-on-exit off\n"
    )
    if any(not p.dead for p in shown):
        return f"new-window -d -t {target} {folder}{command}\n"
    size = f"-x {PANE_SIZE[0]} -y {PANE_SIZE[1]}"
    start = f"new-session -d -s {quote(spec.name)} {size} {folder}{command} ; {options}"
    return f"kill-session -t {quote(f'={spec.name}')}\n{start}" if shown else start


def make_socket_folder(socket: str) -> None:
    """Make the folder of a tmux socket as tmux would.  Raises Failure."""
    folder = os.path.dirname(socket)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as e:
        raise Failure(f"tmux: {folder}: {e.strerror}") from None
    check_socket(socket)


def start_server(tmux: Tmux, lines: str) -> tuple[str, str]:
    """Start a tmux server in a scope of its own with its first sessions.

    Returns tmux's complaints, and a warning where no scope could be had.  Stopping the
    unit then cannot reach the server; OOMPolicy keeps one out-of-memory kill from
    stopping every session (known to scopes since systemd 253).  Raises Failure when
    the user manager is shutting down.
    """
    commands = ("start-server", ";", "source-file", "-")
    name = f"{PROG}-tmux-{os.getpid()}-{time.monotonic_ns() // 1000}"
    why = ""
    for properties in (("OOMPolicy=continue",), ()):
        try:
            done = tmux(
                *commands, check=False, input=lines, scope=scope_argv(f"{name}.scope", *properties)
            )
        except Failure as e:
            why = str(e)
            break
        if "destructive" in done.stderr:
            raise Failure(SHUTTING_DOWN)
        if done.status == 0 or tmux.panes() is not None:
            return done.stderr, ""
        why = " ".join(done.stderr.split())
        if "OOMPolicy" not in why:
            break
    if "stopping" in (manager_state(), manager_state("--user")):
        raise Failure(SHUTTING_DOWN)  # its connections break off before it says so itself
    done = tmux(*commands, check=False, input=lines)
    return done.stderr, f"the tmux server will not survive a logout: no scope of its own ({why})"


def is_reached(socket: str) -> bool:
    """Tell whether a process takes connections at a path, be it stopped or its queue full."""
    import _socket

    conn = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    conn.setblocking(False)
    try:
        return conn.connect_ex(socket) in (0, errno.EAGAIN)
    finally:
        conn.close()


def recover_socket(socket: str) -> bool:
    """Have a tmux server whose socket file was deleted make it anew; True when it did.

    SIGUSR1 is tmux(1)'s way; the server is the process that holds the socket's inode.
    """
    inode = socket_inode(socket)
    if not inode or is_reached(socket):
        return False
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            fds = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue  # another user's, or gone
        if f"socket:[{inode}]" in fds and "tmux" in read_file(f"/proc/{pid}/comm"):
            make_socket_folder(socket)
            os.kill(pid, signal.SIGUSR1)
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                if is_reached(socket):
                    return True
                time.sleep(0.02)  # tmux says nothing when it is done
            return False
    return False


def claim(paths: Paths, decision: Decision, socket: str) -> None:
    """Say in .run that this process is launching a session, before its pane exists."""
    me = os.getpid()
    claimed = Supervisor(
        boot_id(), me, process_start(me), 0, "", "", socket, decision.resume, time.time(),
        paths.claude,
    )  # fmt: skip
    try:
        write_atomic(paths.of(decision.spec.name, "run"), format_supervisor(claimed))
    except OSError as e:
        if e.errno != errno.EROFS:
            raise
        tell(f"{decision.spec.name}: this launch is not recorded: {e.strerror}", 4)


def read_late(paths: Paths, decisions: Sequence[Decision], panes: Sequence[Pane]) -> World:
    """Return what may have changed since decisions were made.  Call it under the lock."""
    listing, boot = frozenset(os.listdir(paths.state)), boot_id()
    folders = {entry[:-4]: "/" for entry in listing if entry.endswith(".run")}
    folders.update({d.spec.name: d.spec.directory for d in decisions})
    facts = {name: read_facts(paths, name, at, listing, boot) for name, at in folders.items()}
    records, unclear = read_records(paths.claude)
    rows = read_registry(paths)[0]
    return World(rows, facts=facts, panes=tuple(panes), records=records, unclear=unclear)


def own_job(paths: Paths, name: str) -> str:
    """Return the file in which this process hands a session's job over; see sweep."""
    return f"{job_folder(paths)}/.{name}.job.{os.getpid()}.0.tmp"


class Launched(NamedTuple):
    """What came of asking tmux for panes."""

    decisions: list[Decision]  # those that have one
    late: dict[str, Decision]  # what came before the others, by name
    complaint: str  # tmux's
    warning: str


def launch(
    paths: Paths, decisions: Sequence[Decision], jobs: Mapping[str, Job], socket: str
) -> Launched:
    """Give each decided session its pane, through one tmux client, under the lock.

    Each is looked at once more first: what has become live, was ended, lost its row, or
    whose name or conversation was taken meanwhile is left alone.  Raises Failure.
    """
    tmux = Tmux(socket)
    make_socket_folder(socket)
    launched: list[Decision] = []
    late: dict[str, Decision] = {}
    written: list[str] = []
    said = ["", ""]

    def act() -> None:
        panes = tmux.panes()
        lines = []
        now = read_late(paths, decisions, panes or ())
        for d in decisions:
            came = decide_late(d, now)
            if came is None and is_retired(paths, d.spec.name):
                came = Decision(d.spec, RETIRED, "", "ended meanwhile")  # its supervisor's last act
            if came is not None:
                late[d.spec.name] = came
                continue
            job = own_job(paths, d.spec.name)
            written.append(job)
            write_job(job, jobs[d.spec.name])
            if d.resume and d.resume not in now.facts[d.spec.name].ids:
                record_id(paths, d.spec.name, d.resume)  # the claim hides the record it came from
            claim(paths, d, socket)
            lines.append(pane_lines(d.spec, d.resume, job, panes or ()))
            launched.append(d)
        if not lines:
            return
        if panes is None:
            said[:] = start_server(tmux, "".join(lines))
        else:
            said[0] = tmux("source-file", "-", check=False, input="".join(lines)).stderr
        taken = parse_duplicates(said[0])  # ~/.tmux.conf may make sessions when a server starts
        for d, job in zip(tuple(launched), written):
            if d.spec.name in taken:
                late[d.spec.name] = decide_foreign(d.spec, MADE_FIRST)
                launched.remove(d)
                remove(job)

    try:
        with_lock(paths, act)
    except Failure:
        for job in written:
            remove(job)  # what was not handed over must not be taken up either
        raise
    return Launched(launched, late, " ".join(said[0].split()), said[1])


def classify_launch(
    decision: Decision,
    run_: Supervisor | None,
    lives: bool,
    event: Event | None,
    record: Record | None,
) -> str:
    """Return what has become of a launch: up, dead, or "" while that is not known."""
    if run_ is None or (not run_.claude and lives):
        return ""
    if not lives:
        return "dead"
    fired = event is not None and event.event == "SessionStart" and event.is_of(run_)
    if fired and event is not None:
        if event.why == "fork" or decision.resume in ("", event.session_id):
            return "up"  # --fork-session among the arguments gives another id on purpose
    elif record is not None and record.status and decision.resume in ("", record.session_id):
        return "up"  # without a status it is at the resume picker (2.1.332)
    return ""


def read_launch(paths: Paths, decision: Decision, boot: str) -> tuple[str, Supervisor | None]:
    """Return what has become of a launch, and its supervisor."""
    name = decision.spec.name
    run_ = parse_supervisor(read_state(paths.of(name, "run")))
    event = parse_event(read_state(paths.of(name, "event")))
    lives = run_ is not None and supervisor_lives(run_, boot)
    record = (
        peek_record(f"{paths.claude}/sessions/{run_.claude}.json") if run_ and run_.claude else None
    )
    if record is not None and run_ is not None and record.start != run_.claude_start:
        record = None
    return classify_launch(decision, run_, lives, event, record), run_


def read_since(path: str, since: float) -> str:
    """Return a state file, "" for one of an earlier run; some disks keep whole seconds."""
    text = read_state(path)
    return text if text and os.stat(path).st_mtime >= int(since) else ""


def describe_end(paths: Paths, name: str) -> str:
    """Return how a session that did not stay up ended, from its .exit and .screen."""
    run_ = parse_supervisor(read_state(paths.of(name, "run")))
    since = run_.at if run_ is not None else 0.0
    ending = read_since(paths.of(name, "exit"), since).strip()
    lines = [line.strip() for line in read_since(paths.of(name, "screen"), since).splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    how = ending.partition(" ")[0] or "no trace"
    return f"it ended at once ({how}{': ' + last if last else ''})"


def judge(
    paths: Paths, decision: Decision, panes: Sequence[Pane], screens: Mapping[str, Screen]
) -> Outcome | None:
    """Return what came of a launch as far as can be told now, or None."""
    state, run_ = read_launch(paths, decision, boot_id())
    name = decision.spec.name
    if state == "dead" and run_ is not None:
        newer = [p for p in panes if p.session == name and p.ours and p.created > run_.at]
        if any(not p.dead for p in newer):  # what .run tells of is an earlier run, see claim
            state = "up" if read_claudes(newer, read_records(paths.claude)[0]) else ""
    if state == "up":
        said = f"resumed {decision.resume}" if decision.resume else decision.why
        return Outcome(decision, True, said)
    mine = [p for p in panes if run_ is not None and p.pid == run_.pid]
    blocked = next(
        (screens[p.key] for p in mine if p.key in screens and screens[p.key].blocks), None
    )
    if blocked is not None:
        hint = f"{PROG} trust {name}" if blocked.consent else f"{PROG} attach {name}"
        return Outcome(decision._replace(verdict=BLOCKED, hint=hint), False, blocked.label)
    if state == "dead":
        return Outcome(
            decision._replace(hint=f"{PROG} logs {name}"), False, describe_end(paths, name)
        )
    return None


def show_progress(pending: Mapping[str, Decision], outcomes: Mapping[str, Outcome]) -> None:
    """Redraw one line a session on the person's terminal; the next redraw or report covers it."""
    lines = []
    for name in list(pending)[-20:]:
        o = outcomes.get(name)
        state = "launched" if o is None else "ready" if o.ok else f"{o.decision.verdict}: {o.why}"
        lines.append(f"\x1b[K  {name}: {plain(state)[:60]}\n")
    sys.stderr.write("".join(lines) + f"\x1b[{len(lines)}A\r")
    sys.stderr.flush()


def watch(
    paths: Paths,
    pending: Mapping[str, Decision],
    socket: str,
    until: float,
    died: list[float] | None = None,
) -> dict[str, Outcome]:
    """Wait until each launch is up, blocked or dead, or until a monotonic moment; return those.

    The moments of deaths are added to `died`.  The kernel wakes us when a supervisor ends;
    hooks and screens must be looked at.
    """
    outcomes: dict[str, Outcome] = {}
    began, pause = time.monotonic(), 0.03
    while True:
        left = {n: d for n, d in pending.items() if n not in outcomes}
        panes, _ = read_panes((socket,))
        names = set(left)
        shown = [p for p in panes if p.session in names]
        try:
            screens = read_screens(shown) if pause > 0.1 else {}
        except Failure:
            screens = {}  # it is launched all the same; the next look tells
        for name, d in left.items():
            outcome = judge(paths, d, panes, screens)
            if outcome is None and pause > 0.5 and name not in {p.session for p in shown}:
                run_ = parse_supervisor(read_state(paths.of(name, "run")))
                if run_ is not None and not run_.claude:
                    outcome = Outcome(d, False, f"tmux did not keep its session{UNKEPT}")
                    remove(own_job(paths, name))  # it holds the whole environment
            if outcome is not None:
                outcomes[name] = outcome
                if died is not None and not outcome.ok and outcome.decision.verdict == LAUNCH:
                    died.append(time.monotonic())
        if os.isatty(2) and began + 1 < time.monotonic():
            show_progress(pending, outcomes)
        if len(outcomes) == len(pending) or time.monotonic() >= until:
            if os.isatty(2):
                sys.stderr.write("\x1b[J")
            return outcomes
        poll = select.poll()
        fds = []
        for p in shown:
            try:
                fds.append(os.pidfd_open(p.pid))
            except OSError:
                continue
            poll.register(fds[-1], select.POLLIN)
        poll.poll(min(pause, max(0.0, until - time.monotonic())) * 1000)
        for fd in fds:
            os.close(fd)
        pause = min(pause * 1.5, 0.6)


def has_route() -> bool:
    """Tell whether the kernel has a default route.  Source: /proc/net/route, ipv6_route."""
    try:
        four = read_file("/proc/net/route", 1 << 22).splitlines()[1:]
        if any(line.split()[1] == "00000000" for line in four if len(line.split()) > 2):
            return True
        six = read_file("/proc/net/ipv6_route", 1 << 22).splitlines()
    except OSError:
        return False
    zero = "0" * 32 + " 00 "
    return any(line.startswith(zero) and not line.rstrip().endswith(" lo") for line in six)


def hear_route(watcher: _socket.socket) -> None:
    """Take one message off a route socket; that some were lost (netlink(7)) is as good as one."""
    try:
        watcher.recv(65536)
    except OSError as e:
        if e.errno != errno.ENOBUFS:
            raise


def watch_routes(deadline: float) -> bool:
    """Wait for a default route until a moment of the monotonic clock; tell whether one came.

    Raises OSError.
    """
    import socket as sockets

    watcher = sockets.socket(sockets.AF_NETLINK, sockets.SOCK_RAW, sockets.NETLINK_ROUTE)
    with watcher:
        watcher.bind((0, 0x1 | 0x40 | 0x400))  # RTMGRP_LINK, IPV4_ROUTE, IPV6_ROUTE
        poll = select.poll()
        poll.register(watcher, select.POLLIN)
        while not has_route():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if poll.poll(left * 1000):
                hear_route(watcher)
    return True


def wait_for_route(limit: float) -> str:
    """Wait until there is a default route, at most `limit` seconds; return a warning or "".

    A user unit cannot order itself after network-online.target.  Netlink wakes us; where the
    kernel refuses it nothing else would.
    """
    if limit <= 0 or has_route():
        return ""
    began = time.monotonic()
    try:
        came = watch_routes(began + min(limit, 1.0))
        if not came and os.isatty(2):
            tell(f"waiting for a default route, for at most {limit:g} s")
        came = came or watch_routes(began + limit)
    except OSError as e:
        return f"no default route, and no way to wait for one ({e.strerror}); launching anyhow"
    return "" if came else f"no default route after {limit:g} s; launching all the same"


# ---- In the pane ----------------------------------------------------------


def note(_signal: int, _frame: object) -> None:
    """Do nothing: the signal's number is in the wake-up pipe, and exec resets a handler."""


def listen() -> int:
    """Have every signal that concerns a supervisor arrive as a byte in a pipe; return its end.

    The terminal's stop signals are blocked: a background process may then set the
    terminal's foreground group.  Handlers, not SIG_IGN: that would outlive exec.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for name in ("SIGHUP", "SIGTERM", "SIGINT", "SIGQUIT", "SIGCHLD", "SIGCONT"):
        signal.signal(getattr(signal, name), note)
    stops = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    return reading


def heard(fd: int) -> bytes:
    """Return the numbers of the signals that arrived."""
    parts: list[bytes] = []
    drain(fd, parts)
    return b"".join(parts)


def exec_command(program: str, argv: Sequence[str]) -> NoReturn:
    """Be replaced by a command, by sh for a script that names nothing, as execvp(3) does.

    Raises OSError.
    """
    try:
        os.execvp(program, list(argv))
    except OSError as e:  # not for a damaged binary, which sh would take for words
        if e.errno != errno.ENOEXEC or b"\0" in os.read(open_file(program), 128):
            raise
    os.execv("/bin/sh", ("sh", program, *argv[1:]))


def exec_job(job: Job) -> None:
    """Become the job's command in its folder; never returns.

    Statuses of env(1): 127 missing, 126 not executable, 125 when its folder cannot be entered.
    """
    status, what = BROKEN, job.directory
    try:
        os.chdir(job.directory)
        status, what = NOT_EXECUTABLE, job.argv[0]
        os.environ.clear()
        os.environ.update(job.env)
        exec_command(job.program or job.argv[0], job.argv)
    except OSError as e:
        if status == NOT_EXECUTABLE and e.errno in (errno.ENOENT, errno.ENOTDIR):
            status = NOT_FOUND
        tell(f"{what}: {e.strerror}", 3)
    finally:
        os._exit(status)


def start_child(job: Job, tty: int, fds: Mapping[int, int] | None = None) -> int:
    """Start a command in a process group of its own, the terminal's foreground; return its pid.

    `fds` says which descriptor becomes its 0, 1 or 2; they are the terminal's else.
    """
    # None may come between fork and exec: our handler in the child would swallow it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, spawn_signals())
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        if tty >= 0:
            os.tcsetpgrp(tty, os.getpid())
        for at, fd in (fds or {}).items():
            os.dup2(fd, at)
        signal.set_wakeup_fd(-1)
        for number in spawn_signals():
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        exec_job(job)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        os.setpgid(pid, pid)
    except (PermissionError, ProcessLookupError):
        pass  # the child was first, or has ended
    return pid


def terminal_gone(tty: int) -> bool:
    """Tell whether the other side of our terminal has closed."""
    if tty < 0:
        return False
    poll = select.poll()
    poll.register(tty, 0)
    return any(
        event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0)
    )


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False when nobody is in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def resume_child(pid: int, tty: int) -> None:
    """Answer a stop (Ctrl-Z): there is no shell here that could ever continue it."""
    if tty >= 0 and not terminal_gone(tty):
        os.tcsetpgrp(tty, os.getpgrp())
        os.tcsetpgrp(tty, pid)
    signal_group(pid, signal.SIGCONT)


def supervise(
    pid: int,
    tty: int,
    wakeups: int,
    look: Callable[[], bool],
    settle: Callable[[], float],
    graces: tuple[float, float] = (HUP_GRACE, TERM_GRACE),
) -> tuple[int, str]:
    """Wait for the child; return its code (-N: signal N) and which of HUP, TERM reached us.

    Both are passed on at once: on a hang-up the kernel tells only us.  After the terminal
    is gone HUP becomes TERM, then KILL.  `look` is asked now and then until it says True,
    however late; `settle` gives the seconds a signal may still be late after the end.
    """
    poll = select.poll()
    poll.register(wakeups, select.POLLIN)
    outside = ""
    pause = 0.25
    next_look = time.monotonic() + pause
    looking = True
    later: list[tuple[float, int]] = []  # (moment, signal) still to be sent
    while True:
        moments = [next_look] * looking + [at for at, _ in later[:1]]
        left = max(0.0, min(moments) - time.monotonic()) * 1000 if moments else None
        poll.poll(left)
        for number in heard(wakeups):
            if number in (signal.SIGHUP, signal.SIGTERM):
                outside = outside or ("HUP" if number == signal.SIGHUP else "TERM")
                signal_group(pid, number)
                if number == signal.SIGHUP and terminal_gone(tty) and not later:
                    now = time.monotonic()
                    later = [
                        (now + graces[0], signal.SIGTERM),
                        (now + sum(graces), signal.SIGKILL),
                    ]
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG)
        if ended is not None and ended.si_code == os.CLD_STOPPED:
            resume_child(pid, tty)
        elif ended is not None:
            exited = ended.si_code == os.CLD_EXITED
            code = ended.si_status if exited else -ended.si_status
            until = time.monotonic() + (settle() if code == 0 and not outside else 0.0)
            while not outside and time.monotonic() < until:
                poll.poll(max(0.0, until - time.monotonic()) * 1000)
                late = heard(wakeups)  # the child's own SIGCHLD may come first
                outside = (
                    "HUP" if signal.SIGHUP in late else "TERM" if signal.SIGTERM in late else ""
                )
            return code, outside
        if looking and time.monotonic() >= next_look:
            looking = not look()
            pause = min(pause * 2, LOOK_PAUSE)
            next_look = time.monotonic() + pause
        while later and time.monotonic() >= later[0][0]:
            signal_group(pid, later.pop(0)[1])


def group_members(group: int) -> list[int]:
    """Return the live processes of a process group."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            state, _, its_group, _, _ = parse_stat(read_file(f"/proc/{pid}/stat"))
        except (OSError, ValueError):
            continue
        if its_group == group and state not in "ZXx":
            found.append(pid)
    return found


def wait_for_process(pid: int, limit: float) -> None:
    """Wait until a process has ended, at most `limit` seconds."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return  # gone already
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(limit * 1000)
    os.close(fd)


def end_group(group: int) -> None:
    """End what is left of a process group whose terminal is gone: nothing goes on unseen."""
    for number, grace in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, 1.0)):
        if not signal_group(group, number):
            return
        deadline = time.monotonic() + grace
        for pid in group_members(group):
            wait_for_process(pid, max(0.0, deadline - time.monotonic()))


def own_terminal() -> int:
    """Return the descriptor of the controlling terminal when stdin is it, else -1."""
    try:
        os.tcgetpgrp(0)
    except OSError:
        return -1
    return 0


def own_pane() -> tuple[str, str]:
    """Return the socket and pane id that tmux gave this process, "" and "" outside tmux."""
    socket = os.environ.get("TMUX", "").rsplit(",", 2)[0]
    return (socket, os.environ.get("TMUX_PANE", "")) if socket else ("", "")


def read_event(paths: Paths, name: str, run_: Supervisor) -> Event | None:
    """Return the last hook event of a session if it is of this run."""
    try:
        event = parse_event(read_state(paths.of(name, "event")))
    except Failure:
        return None
    return event if event is not None and event.is_of(run_) else None


def find_run(paths: Paths, name: str, pid: int) -> tuple[str, Supervisor | None]:
    """Return the .run of a process and the name it is filed under: `rename` moves the file.

    Raises OSError or Failure for what cannot be read.
    """
    start = process_start(pid)
    others = [n[:-4] for n in os.listdir(paths.state) if n.endswith(".run")]
    for each in (name, *others):
        run_ = parse_supervisor(read_state(paths.of(each, "run")))
        if run_ is not None and (run_.pid, run_.start) == (pid, start):
            return each, run_
    return name, None


def current_name(paths: Paths, name: str) -> str:
    """Return the name that this process's session has now."""
    try:
        return find_run(paths, name, os.getpid())[0]
    except (OSError, Failure):
        return name  # the name it was launched under is as good


def read_copies(paths: Paths, only: Container[str] = ()) -> dict[str, Spec]:
    """Return the restore set from the state folder alone: no git, nothing to wait for.

    With `only` no more of the manifest than these names: whose another row is may hang on a
    disk that does not answer.
    """
    is_mine = own_rows(paths)
    mine, _ = parse_rows(
        read_state(f"{paths.state}/manifest.tsv"),
        declared=True,
        mine=lambda spec: (not only or spec.name in only) and is_mine(spec),
    )
    return {spec.name: spec for spec in restore_set(mine, read_registry(paths)[0])}


def note_run(paths: Paths, name: str, run_: Supervisor) -> None:
    """Write the .run file; a session that cannot be recorded still runs, and says so."""
    try:
        if not run_.claude:
            remove(paths.of(name, "event"))  # an earlier run's: this one's shows that hooks work
        write_atomic(paths.of(name, "run"), format_supervisor(run_))
    except OSError as e:
        tell(f"{name}: this run is not recorded: {e.strerror}", 4)


def save_screen(path: str, name: str, socket: str, pane: str) -> None:
    """Keep what the pane shows now as evidence of an end that nobody wanted."""
    try:
        argv = ("capture-pane", "-p", "-t", pane)
        shown = Tmux(socket)(*argv, check=False, timeout=TMUX_TIMEOUT).stdout if pane else ""
        if shown.strip():
            write_atomic(path, shown.rstrip() + "\n")
    except (Failure, OSError) as e:
        tell(f"{name}: its last screen is not kept: {e}", 4)


def note_health(paths: Paths, name: str, ending: Ending, lasted: float, now: float) -> None:
    """Count a failed launch: an end by itself within a minute; an hour up forgets them."""
    health = parse_health(read_state(paths.of(name, "health")))
    failed = ending.by_itself and lasted < FAILURE_WINDOW
    if failed:
        health = health._replace(failures=health.failures + 1, last=now)
    elif ending.deliberate or lasted >= HEALTHY_AFTER:
        health = Health()
    if failed or os.path.exists(paths.of(name, "health")):
        write_atomic(paths.of(name, "health"), format_health(health))


def note_retired(paths: Paths, names: Iterable[str], directory: str) -> None:
    """Mark sessions as ended on purpose and drop their registry rows.

    A registry that is locked for longer than a second is left to the next start.
    """
    names = {*filter(None, names)}
    earlier = {spec.renamed for spec in read_registry(paths)[0] if spec.name in names}
    rows = read_copies(paths, names | earlier)

    def find_row(name: str) -> Spec:
        kept = parse_retired(name, read_state(paths.of(name, "retired")))
        return rows.get(name) or (kept if kept.directory else Spec(name, directory))

    wanted = {n: find_row(n) for n in names}
    wanted.update({s.renamed: rows.get(s.renamed, s) for s in list(wanted.values()) if s.renamed})
    for name, spec in wanted.items():
        retire(paths, spec._replace(name=name), "ended at its prompt")
    with_lock(paths, lambda: unregister(paths, wanted), RUN_LOCK_WAIT)


def conclude(paths: Paths, name: str, ending: Ending, run_: Supervisor, directory: str) -> None:
    """Write how a session ended; what cannot be written does not keep the rest from it."""
    now = time.time()
    up = time.clock_gettime(time.CLOCK_BOOTTIME)  # the wall's clock is set while sessions run
    lasted = up - int(run_.start) / os.sysconf("SC_CLK_TCK")
    event = read_event(paths, name, run_)
    steps: list[Callable[[], object]] = [
        lambda: write_atomic(paths.of(name, "exit"), format_ending(ending, iso(now))),
        lambda: note_health(paths, name, ending, lasted, now),
    ]
    if ending.deliberate:
        names = dict.fromkeys((name, event.name if event else ""))
        steps.append(lambda: note_retired(paths, names, directory))
    for step in steps:
        try:
            step()
        except (OSError, Failure) as e:
            tell(f"{name}: its end is not fully recorded: {e}", 3)
    if not (ending.deliberate or ending.stopping or ending.signalled == "HUP"):
        save_screen(paths.of(name, "screen"), name, run_.socket, run_.pane)


def run_session(paths: Paths, name: str, resume: str, job: Job, path: str) -> int:
    """Run a session's claude in this pane to its end and record it; returns the shell's status."""
    at = time.time()
    socket, pane = own_pane()
    wakeups, tty = listen(), own_terminal()
    me = os.getpid()
    start = process_start(me)
    run_ = Supervisor(boot_id(), me, start, 0, "", pane, socket, resume, at, paths.claude)
    note_run(paths, name, run_)
    if path:
        os.unlink(path)  # gone: its launcher died, and a later one did not see us yet
    try:
        os.chdir(job.directory)  # `open` asks where we are, and tmux may have put us elsewhere
    except OSError:
        pass  # the child says so, see exec_job
    pid = start_child(job, tty)
    directory = job.directory
    del job  # it holds a whole environment; this process waits for weeks
    run_ = run_._replace(claude=pid, claude_start=process_start(pid))
    note_run(paths, name, run_)
    record = f"{paths.claude}/sessions/{pid}.json"
    seen = [False]

    def look() -> bool:
        seen[0] = seen[0] or os.path.exists(record)
        return seen[0] or read_event(paths, name, run_) is not None

    def settle() -> float:
        return SETTLE if read_event(paths, current_name(paths, name), run_) is None else 0.0

    code, outside = supervise(pid, tty, wakeups, look, settle)
    name = current_name(paths, name)
    event = read_event(paths, name, run_)
    ended = (
        event is not None and event.event == "SessionEnd" and event.why not in ("clear", "resume")
    )
    ending = Ending(
        max(code, 0),
        max(-code, 0),
        outside,
        manager_state(),
        manager_state("--user") if paths.runtime else "",
        scope_state() if paths.runtime else "",
        event.why if event is not None and ended else None,
        event is not None,
        seen[0],
    )
    conclude(paths, name, ending, run_, directory)
    if terminal_gone(tty):
        end_group(pid)
    return ending.rc


# ---- The hook -------------------------------------------------------------


def read_payload(wait: float) -> dict[str, object]:
    """Return the hook's JSON object from stdin without waiting for its end; {} for none in time.

    A caller may write slowly, never close its end, or send nothing.
    """
    parts: list[bytes] = []
    deadline, left = time.monotonic() + wait, 1 << 24
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while time.monotonic() < deadline and left > 0:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            break
        part = os.read(0, 65536)
        left -= len(part)
        parts.append(part)
        if not part or part.rstrip().endswith(b"}"):
            try:
                return parse_object(b"".join(parts).decode("utf-8", "surrogateescape"))
            except ValueError:
                if not part:
                    break
    return {}


def is_nested(claude: str, pid: int, pane_pid: int) -> bool:
    """Tell whether another claude stands between a claude and its pane's process.

    Raises Failure when the pane's process is no ancestor of it at all.
    """
    if pid == pane_pid:
        return False
    parents = process_parents(pid)
    if pane_pid not in parents:
        raise Failure("not a process of this pane")
    between = parents[: parents.index(pane_pid) + 1]
    records = (peek_record(f"{claude}/sessions/{each}.json") for each in between)
    return any(record is not None and record.alive for record in records)


def hook_claude(run_: Supervisor | None, pane_pid: int) -> int:
    """Return the pid of the claude that fired this hook, 0 when it cannot be told.

    CLAUDE_PID says it; an older Claude is the hook's parent, or the parent of its shell.
    """
    named = os.environ.get("CLAUDE_PID", "")
    if named.isdecimal():
        return int(named)
    near = [os.getppid(), *process_parents(os.getppid())[:1]]
    known = {pane_pid, run_.claude if run_ is not None else 0}
    return next((pid for pid in near if pid in known), 0)


def own_shown(paths: Paths, launched: str, socket: str, pane_id: str) -> list[Pane]:
    """Return the hook's pane, once for each session that shows it.  Raises Failure.

    Where tmux cannot be asked (its socket was deleted, or is another server's now) its
    supervisor's record stands in: what is said then is said once.
    """
    parents = process_parents(os.getpid())
    shown: list[Pane] = []
    trouble = None
    try:
        panes = Tmux(socket).panes() or ()
        shown = [p for p in panes if p.pane_id == pane_id and not p.dead]
    except Failure as e:
        trouble = e
    own = parse_supervisor(read_state(paths.of(launched, "run"))) if launched else None
    near = {*parents, own.pid if own is not None else 0}
    for pid in parents if launched and not any(p.pid in near for p in shown) else ():
        name, run_ = find_run(paths, launched, pid)
        if run_ is not None and (run_.socket, run_.pane) == (socket, pane_id):
            event = read_event(paths, name, run_)
            heirs = (s.name for s in read_registry(paths)[0] if s.renamed == name)
            session = (event.name if event else "") or next(heirs, name)  # as it was last seen
            return [Pane(session, "", pane_id, pid, False, 0, 0, 0, True, socket)]
    if trouble is not None:
        raise trouble
    return shown


def take_event(paths: Paths, payload: Mapping[str, object]) -> None:
    """File a SessionStart or SessionEnd event of the claude that this pane belongs to.

    The conversation id goes under the pane's live session name, the event under the name
    its supervisor runs as.  An event of a nested or foreign claude changes nothing.
    """
    socket, pane_id = own_pane()
    session_id, kind = payload.get("session_id"), payload.get("hook_event_name")
    if (
        not socket
        or not pane_id
        or not isinstance(session_id, str)
        or not is_session_id(session_id)
    ):
        return
    launched = os.environ.get("PS_SESSION_NAME", "")
    launched = "" if classify_name(launched) else launched
    shown = own_shown(paths, launched, socket, pane_id)
    if not shown:
        return
    run_ = None
    if launched:
        launched, run_ = find_run(paths, launched, shown[0].pid)
    pid = hook_claude(run_, shown[0].pid)
    if not pid or is_nested(paths.claude, pid, shown[0].pid):
        return
    known = read_copies(paths, {launched, *(pane.session for pane in shown)})
    name = choose_filing(shown, launched, run_ is not None, known)
    if classify_name(name):
        return
    why = payload.get("source") if kind == "SessionStart" else payload.get("reason")
    if kind == "SessionStart":
        if why == "startup" and run_ is not None and run_.resume not in ("", session_id):
            return  # a resume also fires a startup with a throw-away id
        record_id(paths, name, session_id)
    event = Event(str(kind), session_id, str(why), time.time(), pid, name)
    keys = ("event", "id", "why", "at", "pid", "name")
    text = format_pairs(dict(zip(keys, event)))
    write_atomic(paths.of(launched if run_ is not None else name, "event"), text)


def cmd_hook() -> int:
    """Serve Claude's SessionStart and SessionEnd hooks: print nothing, exit 0 whatever happens."""
    try:
        payload = read_payload(HOOK_STDIN_WAIT)
        if payload.get("hook_event_name") in ("SessionStart", "SessionEnd"):
            paths = Paths.from_env(os.environ)
            if os.path.isdir(paths.state):
                take_event(paths, payload)
    except Exception as e:  # the one broad handler: a hook must never disturb its session
        if os.environ.get("PS_TRACE"):
            tell(f"hook: {type(e).__name__}: {e}", 4)
    return OK


def claim_by_hand(paths: Paths, spec: Spec, resume: str) -> None:
    """Claim a session for a `run` that no launch of ours prepared.

    Raises Failure where it lives, or where another process writes its conversation.
    """
    wished = Decision(spec, LAUNCH, resume)

    def act() -> None:
        world = read_late(paths, [wished], ())
        facts = world.facts[spec.name]
        held = decide_held(spec, resume, world)
        why = facts.trouble or (held.why if held is not None else "")
        if facts.run is not None and facts.run_live:
            why = f"pid {facts.run.pid} writes this conversation (session {spec.name!r})"
        if why:
            raise Failure(f"run: {spec.name}: {why}", hint=f"{PROG} list")
        claim(paths, wished, own_pane()[0])

    with_lock(paths, act)


def cmd_run(argv: Sequence[str]) -> int:
    """Run one session in this pane: NAME [ID] [--job FILE]."""
    words = list(argv)
    path = ""
    if "--job" in words and words.index("--job") + 1 < len(words):
        path = words.pop(words.index("--job") + 1)
        words.remove("--job")
    name, resume = [*words, "", ""][:2]
    why = classify_name(name) or ("too many words" if len(words) > 2 else "")
    if not why and resume and not is_session_id(resume):
        why = f"not a conversation id: {resume!r}"
    if why:
        raise Failure(f"run: {why}", hint=f"{PROG} run NAME [ID]", status=USAGE)
    paths = Paths.from_env(os.environ)
    if path:
        job = read_job(path)
        kept = {k: v for k, v in os.environ.items() if k in TERMINAL_OWN}
        os.environ.clear()
        os.environ.update({**job.env, **kept})
        job = job._replace(env=dict(os.environ))
        paths = Paths.from_env(os.environ)
    else:
        make_state(paths)
        config, _, _ = load_config(paths)
        spec = read_copies(paths, {name}).get(name, Spec(name, os.getcwd()))
        claim_by_hand(paths, spec, resume)
        binary, _ = find_claude(paths, config)
        job = session_job(paths, config, spec, resume, binary)
        kept = {k: v for k, v in os.environ.items() if k in TERMINAL_OWN}
        job = job._replace(env={**job.env, **kept})
    return run_session(paths, name, resume, job, path)


# ---- Host -----------------------------------------------------------------
#
# The life of a hosted launch.  Caller: record, admission, handoff (job, socket), tmux in a
# scope; accept the pane's connection, pass the descriptors on, wait.  Pane: arm the receipt,
# claim the job, take the descriptors, run, publish the receipt, tell the caller, record the
# end.  Whoever renames the job runs it: the pane, or the caller when tmux did not deliver.

SHIM = """#!/usr/bin/python3 -IS
import os, sys
here = os.path.dirname(os.path.realpath(__file__))
sys.path += [here + "/parts/host", here]
import persistent_sessions
sys.exit(persistent_sessions.main())
"""


def trace(message: str) -> None:
    """Say what only a person who asked for it wants to know."""
    if os.environ.get("PS_TRACE"):
        tell(message)


def find_term(term: str) -> str:
    """Return a terminal type this box can draw on: the caller's, else a common one, else ""."""
    for each in (term, "xterm-256color", "xterm", "screen", "linux", "vt100"):
        if not each:
            continue
        try:
            if run(["tput", "-T", each, "clear"], check=False).status == 0:
                return each
        except Failure:
            return term  # no tput here: tmux decides
    return ""


def attach(socket: str, name: str) -> int:
    """Show a tmux session on this terminal until the person leaves it; returns the status."""
    target = f"={name}"
    command = f"tmux -S {socket} attach -t '={name}'"
    if os.environ.get("TMUX"):
        if own_pane()[0] != socket:
            raise Failure(
                f"{name}: this is a tmux of another server", hint=f"env -u TMUX {command}"
            )
        Tmux(socket)("switch-client", "-t", target)
        return OK
    if not (os.isatty(0) and os.isatty(1)):
        tell(f"{name}: running, not shown: there is no terminal here ({command})")
        return OK
    term = find_term(os.environ.get("TERM", ""))
    if not term:
        raise Failure(f"{name}: running, not shown: no usable terminal type", hint=command)
    argv = ["tmux", "-u", "-S", socket, "attach-session", "-t", target]
    pid = os.posix_spawnp(argv[0], argv, {**os.environ, "TERM": term})
    while True:
        try:
            return shell_status(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        except KeyboardInterrupt:
            continue  # the terminal's; tmux decides what it means


def execute(order: Order, why: str) -> int:
    """Become the command itself, not hosted; returns only when that is not possible."""
    trace(f"host: executed directly: {why}")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; exec would keep that
        signal.signal(number, signal.SIG_DFL)
    try:
        exec_command(order.program, order.argv)
    except OSError as e:
        missing = e.errno in (errno.ENOENT, errno.ENOTDIR)
        status = NOT_FOUND if missing else NOT_EXECUTABLE
        raise Failure(f"{order.argv[0]}: {e.strerror}", status=status) from None


def ledger_folder(paths: Paths) -> str:
    """Return the folder of the launches' records."""
    return os.path.abspath(os.environ.get("AGENT_SESSIONS_DIR") or f"{paths.state}/ledger")


def record_launch(ledger: str, entry: Launch, *, sync: bool) -> None:
    """Write a launch's record.  Raises OSError.

    What describes live processes needs no sync: a power cut ends them as well.
    """
    write_atomic(f"{ledger}/{entry.id}.json", format_launch(entry), sync=sync)


def read_ledger(ledger: str) -> dict[str, Launch]:
    """Return every record that can be read, by ledger id.  Raises Failure."""
    try:
        names = os.listdir(ledger)
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise Failure(f"{ledger}: {e.strerror}") from None
    found = {}
    for name in names:
        if name.endswith(".json") and not name.startswith("."):
            try:
                entry = parse_launch(read_file(f"{ledger}/{name}"))
            except OSError:
                continue  # removed meanwhile, or no file at all
            if entry is not None and entry.id == name[:-5]:
                found[entry.id] = entry
    return found


def read_live_panes(ledger: str) -> dict[str, Launch]:
    """Return the launches that live, found by their processes and whatever became of records.

    A pane's process names its handoff in its arguments, its server in its environment
    and its scope in its cgroup.
    """
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = read_file(f"/proc/{pid}/cmdline", 1 << 16).split("\0")
            if words[-3:-2] != ["_pane"] or os.path.dirname(words[-2]) != f"{ledger}/spawn":
                continue
            env = dict(e.partition("=")[::2] for e in read_file(f"/proc/{pid}/environ").split("\0"))
            scope = os.path.basename(read_file(f"/proc/{pid}/cgroup").strip())
            start = process_start(pid)
            born = os.stat(f"/proc/{pid}").st_mtime
        except OSError:
            continue  # another user's, or gone
        if start and env.get("TMUX_PANE"):
            found[os.path.basename(words[-2])] = Launch(
                os.path.basename(words[-2]), started=born, boot=boot_id(), mux="tmux", unit=scope,
                socket=env.get("TMUX", "").rsplit(",", 2)[0], pane=pid, pane_start=start,
            )  # fmt: skip
    return found


def process_lives(pid: int, start: str, boot: str) -> bool:
    """Tell whether a recorded process is still that process."""
    return pid > 0 and boot == boot_id() and process_start(pid) == start != ""


def read_session(socket: str) -> tuple[str, int]:
    """Return the session of a launch's own server and how many terminals show it, "" and 0.

    Raises Failure when its tmux does not answer.
    """
    recover_socket(socket)
    argv = ("list-sessions", "-F", "#{session_attached} #{session_name}")
    done = Tmux(socket)(*argv, check=False, timeout=TMUX_TIMEOUT)
    count, _, name = (done.stdout.splitlines() or ["0 "])[0].partition(" ")
    return name, int(count or 0)


def read_entry(ledger: str, launch_id: str) -> Launch:
    """Return the record of a launch that runs now; a new one where it is missing."""
    try:
        found = parse_launch(read_file(f"{ledger}/{launch_id}.json"))
    except OSError:
        found = None
    return found or Launch(launch_id, started=time.time(), boot=boot_id())


def read_receipt(folder: int) -> int:
    """Return the status in a handoff's receipt.  Raises Failure."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open("receipt", flags, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Failure("the receipt is no file")
            return parse_receipt(os.read(fd, 64).decode("ascii", "replace"))
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise Failure("it ended without a receipt") from None
    except OSError as e:
        raise Failure(f"its receipt cannot be read: {e.strerror}") from None


def read_end(ledger: str, entry: Launch) -> Launch:
    """Return a record with the end that its pane published but could not file, if there is one.

    A full disk, or a kill right then; the handoff with its receipt stays for that.
    """
    try:
        folder = os.open(f"{ledger}/spawn/{entry.id}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = read_receipt(folder)
            return entry._replace(ended=os.stat("receipt", dir_fd=folder).st_mtime, status=status)
        finally:
            os.close(folder)
    except (OSError, Failure):
        return entry


def read_hosted(ledger: str) -> list[Hosted]:
    """Return every launch with its state, the newest first.  Raises Failure."""
    records, panes = read_ledger(ledger), read_live_panes(ledger)
    found = []
    for launch_id in {*records, *panes}:
        entry = records.get(launch_id) or panes[launch_id]
        seen = panes.get(launch_id)
        caller = process_lives(entry.caller, entry.caller_start, entry.boot)
        if seen is not None and not entry.direct:
            entry = entry._replace(
                mux=seen.mux, unit=seen.unit, socket=seen.socket, boot=seen.boot, pane=seen.pane,
                pane_start=seen.pane_start, session=entry.session,
            )  # fmt: skip
        alive = seen is not None or (caller and bool(entry.direct or not entry.pane))
        watched, trouble = caller, ""
        if not (alive or entry.ended):
            entry = read_end(ledger, entry)
        if seen is not None and not entry.ended and not (caller and entry.session):
            try:
                session, watchers = read_session(entry.socket)
                entry = entry._replace(session=session or entry.session)
                watched = caller or watchers > 0
            except Failure as e:
                trouble = str(e)
        found.append(Hosted(entry, classify_hosted(entry, alive, watched), trouble))
    return sorted(found, key=lambda h: (-h.entry.started, h.entry.id))


def find_hosted(ledger: str, word: str) -> Hosted | None:
    """Return the launch that a ledger id, a unique start of one, or a name means.

    A launch that nobody named has the name of its session.  Raises Failure when several
    are meant.
    """
    launches = read_hosted(ledger)
    exact = [h for h in launches if h.entry.id == word]
    named = [h for h in launches if h.entry.name == word]
    begun = [h for h in launches if word and h.entry.id.startswith(word)]
    shown = [h for h in launches if word and not h.entry.name and h.entry.session == word]
    other = {h.entry.id: h for h in (*([h for h in shown if h.alive] or shown), *begun)}
    found = exact or [h for h in named if h.alive] or named[:1] or list(other.values())
    if len(found) > 1:
        ids = ", ".join(h.entry.id for h in found[:5])
        raise Failure(f"{word!r} is not one launch: {ids}", hint=f"{PROG} list", status=USAGE)
    return found[0] if found else None


def remove_tree(folder: str) -> None:
    """Remove a handoff with what is in it; it may be gone already."""
    try:
        for name in os.listdir(folder):
            remove(f"{folder}/{name}")
        os.rmdir(folder)
    except OSError:
        return  # removed by the other side, or found again by the next sweep


def is_left_over(path: str, launch_id: str, live: frozenset[str], listening: str) -> bool:
    """Tell whether a file was made for a launch that does not live; no other file is ours."""
    if len(launch_id) != ID_LENGTH or set(launch_id) - HEX or launch_id in live:
        return False
    return path not in listening  # another ledger's launches have their sockets here too


def note_launch(ledger: str, entry: Launch, *, sync: bool) -> bool:
    """Write a launch's record and tell whether that worked: it runs and ends without it, too."""
    try:
        record_launch(ledger, entry, sync=sync)
    except OSError as e:
        tell(f"{entry.id}: its record was not written: {e.strerror}", 4)
        return False
    return True


def sweep_ledger(paths: Paths, ledger: str, keep_days: float) -> None:
    """Remove records older than `keep_days` and what dead launches left; a live one stays."""
    sweep(ledger)
    entries = read_ledger(ledger).values()
    callers = (e.id for e in entries if process_lives(e.caller, e.caller_start, e.boot))
    live = frozenset((*callers, *read_live_panes(ledger)))
    for entry in (e for e in entries if not e.ended and e.id not in live):
        found = read_end(ledger, entry)
        if found.ended and note_launch(ledger, found, sync=True):
            remove_tree(f"{ledger}/spawn/{entry.id}")
    listening, now = read_file("/proc/net/unix", 1 << 24), time.time()
    ages = {ledger: keep_days * 86400.0, f"{ledger}/spawn": 3600.0}
    if paths.runtime:
        ages[f"{paths.runtime}/{PROG}"] = 60.0
    for folder, age in ages.items():
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path, launch_id = f"{folder}/{name}", name.lstrip(".").partition(".")[0]
            try:
                seen = os.lstat(path)
                if now - seen.st_mtime > age and is_left_over(path, launch_id, live, listening):
                    (remove_tree if stat.S_ISDIR(seen.st_mode) else remove)(path)
            except OSError:
                continue  # removed meanwhile, or not ours to remove


def sweep_daily(paths: Paths, ledger: str, keep_days: float) -> None:
    """Sweep the ledger if that was not done for a day."""
    stamp = f"{ledger}/swept"
    try:
        if time.time() - os.stat(stamp).st_mtime < 86400:
            return
    except FileNotFoundError:
        pass
    os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.utime(stamp)
    sweep_ledger(paths, ledger, keep_days)


def admit(paths: Paths, ledger: str, entry: Launch, cap: float) -> None:
    """Record a new launch; over the cap raise Failure with nothing recorded.

    Counted under the lock over what lives, so that a crash gives its place back.
    """
    for folder in (ledger, f"{ledger}/spawn"):
        os.makedirs(folder, 0o700, exist_ok=True)
        seen = os.stat(folder)
        if seen.st_uid != os.getuid() or seen.st_mode & 0o022:
            raise Failure(f"{folder}: others can write there", hint=f"chmod go-w {folder}")
    if not cap or entry.direct:
        record_launch(ledger, entry, sync=False)
        return

    def act() -> None:
        records = read_ledger(ledger)
        # What an ended launch left behind may keep its pane for long, and has no place.
        ended = {each.id for each in records.values() if each.ended}
        running = set(read_live_panes(ledger)) - ended
        for each in records.values():
            pending = not each.pane and not each.ended and not each.direct
            if pending and process_lives(each.caller, each.caller_start, each.boot):
                running.add(each.id)
        if len(running) >= cap:
            why = f"{len(running)} launches run, {cap:g} may: {', '.join(sorted(running))}"
            raise Failure(f"host: {why}", hint=f"{PROG} list", status=NO_ROOM)
        record_launch(ledger, entry, sync=False)

    with_lock(paths, act)


def missing_part(paths: Paths, environ: Mapping[str, str]) -> str:
    """Return what this machine lacks to host a launch, or ""."""
    for name in ("tmux", "systemd-run"):
        if not find_program(name, environ):
            return f"no {name}"
    # Made by the user manager, and what systemd-run connects to.
    if not paths.runtime or not os.path.exists(f"{paths.runtime}/systemd/private"):
        return "no user manager"
    return ""


def carries_data(fd: int) -> bool:
    """Tell a pipe, file or socket from a terminal, /dev/null and a closed descriptor."""
    try:
        seen = os.fstat(fd)
    except OSError:
        return False
    if not stat.S_ISCHR(seen.st_mode):
        return True
    return not os.isatty(fd) and seen.st_rdev != os.makedev(1, 3)  # /dev/null, devices.txt


def read_streams() -> str:
    """Return which of our descriptors are data: 0, 1, 2, and "b" for 1 and 2 in one stream."""
    given = "".join(str(fd) for fd in range(3) if carries_data(fd))
    if "12" in given:
        out, err = os.fstat(1), os.fstat(2)
        if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino):
            return given.replace("12", "b")  # 2>&1: their order is kept
    return given


def fill_standard() -> None:
    """Put /dev/null where a standard descriptor is closed, or our own files would get there."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def socket_at(folder: int) -> str:
    """Return a short path for the socket in a handoff: sun_path has 107 bytes, unix(7)."""
    return f"/proc/self/fd/{folder}/socket"


def make_handoff(path: str, job: Job) -> tuple[int, _socket.socket]:
    """Make a launch's handoff: folder, job, and the socket the pane comes to.  Raises OSError."""
    import _socket

    os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    write_job(f"{path}/job", job)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    listener.bind(socket_at(folder))
    listener.listen(1)
    return folder, listener


def start_hosted(paths: Paths, config: Config, entry: Launch, handoff: str) -> tuple[int, str]:
    """Start a tmux server in a scope of its own with the pane; return its pid, or 0 and why not.

    Neither the job nor the caller's environment passes through tmux.
    """
    kept = ("HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")
    env = {key: os.environ[key] for key in kept if key in os.environ}
    env.update(XDG_RUNTIME_DIR=paths.runtime, SHELL="/bin/sh", TERM="dumb")
    size = PANE_SIZE
    if os.isatty(1) and 0 not in os.get_terminal_size(1):
        size = (str(os.get_terminal_size(1)[0]), str(os.get_terminal_size(1)[1]))
    known = [t for t in PANE_TERMS if any(os.path.exists(f"{d}/{t[0]}/{t}") for d in TERMINFO)]
    term = (*known, "screen")[0]
    rgb = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    command = own_argv("_pane", handoff)
    words = server_words(entry.session, size, config.detach_key, term, rgb, command)
    properties = ("SendSIGHUP=yes", f"TimeoutStopSec={SCOPE_STOP:g}")
    scope = scope_argv(entry.unit, *properties)
    scope += ["--slice=agent.slice", f"--description=hosted {entry.session}"]
    try:
        check_socket(entry.socket)
        done = Tmux(entry.socket)(*words, check=False, scope=scope, env=env)
    except Failure as e:
        return 0, str(e)
    if done.status or not done.stdout.strip().isdigit():
        return 0, " ".join(done.stderr.split()) or f"status {done.status}"
    return int(done.stdout), ""


def claim_job(folder: int, who: str) -> bool:
    """Take a launch's job for one side; False when the other side has it, or it is gone."""
    try:
        os.rename("job", f"job.{who}", src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        return False
    return True


def open_process(pid: int) -> int:
    """Return a pidfd, or -1 when there is no such process."""
    try:
        return os.pidfd_open(pid) if pid > 0 else -1
    except ProcessLookupError:
        return -1


def accept_pane(listener: _socket.socket, server: int) -> _socket.socket | None:
    """Return the connection of the launch's pane; None when none came and its server is gone.

    Without a known server the pane has PANE_GRACE to come: it has claimed the job.
    """
    import _socket

    watched = open_process(server)
    poll = select.poll()
    for fd in (listener.fileno(), watched):
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    came = listener.fileno() in dict(poll.poll(None if watched >= 0 else PANE_GRACE * 1000))
    if watched >= 0:
        os.close(watched)
    if not came:
        return None
    fd = listener._accept()[0]  # type: ignore[attr-defined]
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)


def can_attach() -> bool:
    """Tell whether this process is on a terminal that can show the pane."""
    drawable = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return drawable and os.isatty(0) and os.isatty(1)


def pass_streams(conn: _socket.socket, streams: str, attached: bool = False) -> None:
    """Let the pane begin, and give it the descriptors that carry data.  Source: unix(7)."""
    import _socket

    fds = (1 if s == "b" else int(s) for s in streams)
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    control = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []
    told = f"go{streams}{'t' if attached else ''}"  # last: it has no descriptor
    conn.sendmsg([told.encode()], control)


def take_streams(conn: _socket.socket) -> tuple[bool, dict[str, int]]:
    """Wait for the caller's word to begin; return whether it is attached, and its descriptors.

    Raises Failure.
    """
    import _socket

    room = _socket.CMSG_SPACE(3 * 4)
    data, control, _, _ = conn.recvmsg(16, room, _socket.MSG_CMSG_CLOEXEC)
    if not data.startswith(b"go"):
        raise Failure("the caller went away before its command was started", status=BROKEN)
    raw = b"".join(part for _, _, part in control)
    fds = [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4)]
    names = data[2:].decode()
    return names.endswith("t"), dict(zip(names, fds))


def await_end(conn: int, pane: int, server: int) -> None:
    """Return once the pane has said that its receipt is there, or cannot any more.

    `pane` and `server` are pidfds, -1 for gone.  No deadline while all live.  A server
    that ends first leaves the pane LOST_GRACE to publish: it has got a SIGHUP.
    """
    poll = select.poll()
    for fd in (conn, pane, server):
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    ended = {fd for fd, _ in poll.poll(None if pane >= 0 and server >= 0 else LOST_GRACE * 1000)}
    if ended == {server}:
        poll.unregister(server)
        poll.poll(LOST_GRACE * 1000)


def stop_scope(paths: Paths, unit: str) -> bool:
    """Have systemd end everything in a launch's scope: TERM, HUP, and KILL after SCOPE_STOP.

    False when it does not answer: neither a command nor a status may wait for it.
    """
    if not unit:
        return True
    argv = ["systemctl", "--user", "stop", "--no-block", "--", unit]
    env = {**os.environ, "XDG_RUNTIME_DIR": paths.runtime}
    try:
        run(argv, check=False, timeout=MANAGER_TIMEOUT, env=env)
    except Failure as e:
        trace(f"host: {unit}: {e}")
        return False
    return True


def fall_back(ledger: str, entry: Launch, order: Order, strays: Iterable[int], why: str) -> int:
    """Execute a launch directly that tmux did not take; its job is ours, so it runs once."""
    remove_tree(f"{ledger}/spawn/{entry.id}")
    entry = entry._replace(direct=why, session="", socket="", unit="")
    try:
        record_launch(ledger, entry, sync=False)
    except OSError as e:
        trace(f"host: not recorded: {e.strerror}")
    for fd in strays:
        os.set_inheritable(fd, True)
    return execute(order, why)


def follow(paths: Paths, config: Config, ledger: str, entry: Launch, conn: _socket.socket,
           server: int) -> bool:  # fmt: skip
    """Stay with a launch until it has ended; False when its person has detached from it."""
    import _socket

    peer = conn.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid: unix(7)
    pid = int.from_bytes(peer[:4], sys.byteorder)
    server = server or (process_parents(pid) or [0])[0]
    watched = (conn.fileno(), open_process(pid), open_process(server))
    if can_attach():
        try:
            if attach(entry.socket, entry.session) == OK:
                poll = select.poll()
                poll.register(conn.fileno(), select.POLLIN)
                if not poll.poll(0) and read_session(entry.socket)[0]:
                    return False
        except Failure as e:
            tell(str(e), 4)
    elif os.isatty(1) or os.isatty(2):
        tell(f"{entry.id} runs in a terminal of its own; {PROG} attach {entry.id} shows it")
    try:
        sweep_daily(paths, ledger, config.keep_days)
    except (Failure, OSError) as e:
        trace(f"host: the ledger was not swept: {e}")
    await_end(*watched)
    return True


def exit_with(status: int) -> NoReturn:
    """End this process with all it has said written, without tearing the interpreter down."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        status = status or TROUBLE
    os._exit(status)


def host_launch(paths: Paths, config: Config, ledger: str, entry: Launch, order: Order) -> int:
    """Run an admitted launch in its own tmux and return its command's status."""
    handoff = f"{ledger}/spawn/{entry.id}"
    strays = close_strays()
    fill_standard()
    env = {k: v for k, v in os.environ.items() if k not in TERMINAL_OWN}
    env["AGENT_LEDGER_ID"] = entry.id
    try:
        job = Job(order.argv, entry.directory, env, order.program or order.argv[0])
        folder, listener = make_handoff(handoff, job)
    except OSError as e:
        return fall_back(ledger, entry, order, strays, f"no handoff: {e.strerror}")
    place = entry._replace(
        session=choose_hosted_name(order.name or os.path.basename(order.argv[0])),
        socket=f"{job_folder(paths)}/{entry.id}",
        unit=f"{PROG}-host-{entry.id}.scope",
    )
    server, why = start_hosted(paths, config, place, handoff)
    ours = bool(why) and claim_job(folder, "caller")
    conn = None if ours else accept_pane(listener, server)
    if conn is None and (ours or claim_job(folder, "caller")):
        stop_scope(paths, place.unit)
        return fall_back(ledger, entry, order, strays, f"tmux did not start it: {why or 'no pane'}")
    try:
        if conn is not None:
            pass_streams(conn, "" if order.pane_stdio else read_streams(), can_attach())
            if not follow(paths, config, ledger, place, conn, server):
                tell(f"{entry.id} goes on; {PROG} attach {entry.id} shows it again")
                return OK
        status = read_receipt(folder)
        said = conn.recv(4096).decode("utf-8", "replace") if conn is not None else ""
        if said:
            tell(f"{entry.id}: {said}", 3)
        if can_attach() and read_entry(ledger, entry.id).ended:
            remove_tree(handoff)
        exit_with(status)
    except KeyboardInterrupt:
        tell(f"{entry.id} goes on; {PROG} attach {entry.id} or {PROG} stop {entry.id}")
        raise
    except (Failure, OSError) as e:
        why = f"{entry.id} (session {place.session!r}): {e}"
        report(Failure(f"host: {why}", hint=f"{PROG} logs {entry.id}"))
        stop_scope(paths, place.unit)
        remove_tree(handoff)
        try:
            remove(place.socket)
        except OSError as error:  # a later sweep removes it
            trace(f"host: {place.socket}: {error.strerror}")
        exit_with(BROKEN)


def new_launch(order: Order, why: str) -> Launch:
    """Return the record of a launch by this process; a direct one inside tmux names its place."""
    socket, pane = own_pane()
    session, pid = "", 0
    if why and pane:
        done = Tmux(socket)("display-message", "-p", "-t", pane, "#{pane_pid} #S", check=False)
        number, _, session = done.stdout.strip().partition(" ")
        pid = int(number) if number.isdigit() else 0
    return Launch(
        os.urandom(ID_LENGTH // 2).hex(),
        order.name,
        order.argv,
        os.getcwd(),
        time.time(),
        boot_id(),
        os.getpid(),
        process_start(os.getpid()),
        os.environ.get("AGENT_LEDGER_ID", ""),
        why,
        "tmux" if session else "",
        session,
        socket if session else "",
        "",
        pid,
        process_start(pid) if pid else "",
    )


def missing_place() -> str:
    """Return why a pane could not come to this process's folder by its path, or ""."""
    try:
        os.chdir(os.getcwd())
    except OSError as e:
        return f"its folder cannot be entered from another: {e.strerror}"
    return ""


def host(order: Order) -> int:
    """Run a command where it can be watched, or directly where that cannot or must not be."""
    if not order.program:
        raise Failure(f"{order.argv[0]}: command not found", status=NOT_FOUND)
    why = choose_direct(os.environ, order.argv)
    if why == BY_A_PERSON:
        return execute(order, why)
    try:
        paths = Paths.from_env(os.environ)
        make_state(paths)
        config, warnings, bad = load_config(paths)
        for line in warnings if bad else ():
            tell(line, 4)
        ledger = ledger_folder(paths)
        why = why or missing_part(paths, os.environ) or missing_place()
        entry = new_launch(order, why)
        admit(paths, ledger, entry, config.max_sessions)
    except Failure as e:
        if e.status == NO_ROOM:
            raise
        return execute(order, f"no ledger id: {e}")
    except OSError as e:
        return execute(order, f"no ledger id: {e.filename or ''}: {e.strerror}")
    if entry.direct:
        return execute(order, entry.direct)
    return host_launch(paths, config, ledger, entry, order)


SLOW = "slow"


def copy_out(data: bytes, fd: int, patience: float | None = None) -> str:
    """Write all of it; return why nobody takes it, or "".

    With `patience` (milliseconds) a reader that is slower than that misses the rest.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if not poll.poll(patience):
                return SLOW
        except OSError as e:
            return e.strerror or str(e.errno)
    return ""


class Pump(NamedTuple):
    """One output of a hosted command on its way to the caller, with a copy to the screen."""

    source: int  # what the command writes comes out here
    sink: int  # the caller's own descriptor
    over: int  # readable once the command has ended
    drained: _thread.LockType  # free once nothing of the command's is left in `source`
    closed: _thread.LockType  # free once nobody can write any more
    trouble: list[str]  # why the caller did not get everything


def copy_stream(flow: Pump) -> None:
    """Copy until every writer has gone; a reader that goes ends only its copy.

    The caller's reader may be as slow as it likes; the screen (one stopped by Ctrl-S, a
    server that hangs) must not hold it up.
    """
    try:
        screen = os.open(os.ttyname(1), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        screen = -1
    poll = select.poll()
    poll.register(flow.source, select.POLLIN)
    poll.register(flow.over, select.POLLIN)
    why = shown = ""
    left: int | None = None  # milliseconds to wait for more
    while True:
        events = dict(poll.poll(left))
        if flow.source in events:
            data = os.read(flow.source, 65536)
            if not data:
                break
            why = why or copy_out(data, flow.sink)
            if shown in ("", SLOW):
                shown = copy_out(data, screen, 0 if shown else SCREEN_WAIT * 1000)
        elif flow.over in events:
            poll.unregister(flow.over)
            left = 0
        else:  # the command has ended, and what it wrote is copied
            left = None
            flow.drained.release()
        if why and not flow.trouble and why != os.strerror(errno.EPIPE):
            flow.trouble.append(f"output lost: {why}")
    os.close(flow.sink)
    if flow.drained.locked():
        flow.drained.release()
    flow.closed.release()


def start_hosted_child(
    job: Job, streams: Mapping[str, int], tty: int
) -> tuple[int, int, list[Pump]]:
    """Start a hosted command between the caller's data and this pane; return it, and what copies.

    The second number is to be closed when the command has ended.
    """
    import _thread

    over, ended = os.pipe()
    fds: dict[int, int] = {}
    pumps = []
    for name, fd in streams.items():
        if name == "0":
            fds[0] = fd
            continue
        source, sink = os.pipe()
        fds.update(dict.fromkeys((1, 2) if name == "b" else (int(name),), sink))
        locks = (_thread.allocate_lock(), _thread.allocate_lock())
        for lock in locks:
            lock.acquire()
        pumps.append(Pump(source, fd, over, *locks, []))
    pid = start_child(job, tty, fds)
    for fd in set(fds.values()):
        os.close(fd)
    for flow in pumps:
        _thread.start_new_thread(copy_stream, (flow,))
    return pid, ended, pumps


class HostedEnd(NamedTuple):
    """How a hosted command ended, and what it may have left behind."""

    status: int
    trouble: str  # why the caller did not get everything, or the command did not run
    group: int
    pumps: Sequence[Pump]
    outside: str = ""  # which of HUP and TERM ended it


def run_hosted(
    ledger: str, entry: Launch, job: Job, streams: Mapping[str, int], wakeups: int, tty: int
) -> HostedEnd:
    """Run a hosted command to its end and its last byte."""
    pid, ended, pumps = start_hosted_child(job, streams, tty)
    del job  # it holds a whole environment
    note_launch(ledger, entry, sync=False)
    # Made durable when it has run for a moment; of a shorter one only the end is.
    code, outside = supervise(
        pid,
        tty,
        wakeups,
        lambda: note_launch(ledger, entry, sync=True) or True,
        lambda: 0.0,
        HOSTED_GRACES,
    )
    os.close(ended)
    for flow in pumps:
        flow.drained.acquire(True, LOST_GRACE if outside else -1)
    trouble = next((t for flow in pumps for t in flow.trouble), "")
    status = shell_status(code)
    if not status and terminal_gone(tty):
        status = 128 + signal.SIGHUP  # it was cut off, however politely it went
    return HostedEnd(BROKEN if trouble and not status else status, trouble, pid, pumps, outside)


def conclude_hosted(
    ledger: str, entry: Launch, end: HostedEnd, handoff: str, conn: _socket.socket, attached: bool
) -> None:
    """Record an end, which the caller knows already, and remove what the launch needed.

    An attached caller returns from its tmux client once this pane is gone, and clears up itself.
    """
    if end.status:
        save_screen(f"{ledger}/{entry.id}.screen", entry.id, *own_pane())
    ended = entry._replace(ended=time.time(), status=end.status)
    noted = note_launch(ledger, ended, sync=True)
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    patience = 0 if attached else LOST_GRACE * 1000
    if poll.poll(patience) and noted:  # the caller has read the receipt, or is gone
        remove_tree(handoff)
    if end.group and terminal_gone(own_terminal()):
        end_group(end.group)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for flow in end.pumps:  # what the command left behind may still write to the caller
        flow.closed.acquire()
    tty = own_terminal()
    if tty >= 0 and not (end.outside or terminal_gone(tty)):
        # What goes on in the command's group is no longer in front: our end hangs it up else.
        os.tcsetpgrp(tty, os.getpgrp())
    remove(entry.socket)


def own_launch(ledger: str, launch_id: str) -> Launch:
    """Return the record of the launch in this pane, with where it is filled in."""
    entry = read_entry(ledger, launch_id)
    word = entry.name or os.path.basename((*entry.argv, "")[0])
    return entry._replace(
        mux="tmux",
        session=choose_hosted_name(word),
        socket=own_pane()[0],
        unit=os.path.basename(read_file("/proc/self/cgroup").strip()),
        pane=os.getpid(),
        pane_start=process_start(os.getpid()),
    )


def cmd_pane(handoff: str) -> int:
    """Run one hosted launch in this pane; its receipt is armed before anything else can fail."""
    import _socket

    folder = os.open(handoff, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    receipt = os.open("receipt.new", flags, 0o600, dir_fd=folder)
    os.write(receipt, format_receipt(BROKEN))  # it has its block now: a full disk cannot stop it
    wakeups, tty = listen(), own_terminal()
    if not claim_job(folder, "pane"):
        return OK  # the caller executes it itself
    ledger, launch_id = os.path.dirname(os.path.dirname(handoff)), os.path.basename(handoff)
    end = HostedEnd(BROKEN, "", 0, ())
    entry, attached = Launch(launch_id), False
    conn = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        conn.connect(socket_at(folder))
        entry = own_launch(ledger, launch_id)
        job = read_job(f"{handoff}/job.pane")
        os.unlink(f"{handoff}/job.pane")
        attached, streams = take_streams(conn)
        kept = {k: v for k, v in os.environ.items() if k in TERMINAL_OWN}
        job = job._replace(env={**job.env, **kept})
        end = run_hosted(ledger, entry, job, streams, wakeups, tty)
    except (Failure, OSError) as e:
        end = end._replace(trouble=str(e))
        tell(str(e), 3)
    try:
        os.pwrite(receipt, format_receipt(end.status), 0)
        os.rename("receipt.new", "receipt", src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as e:
        tell(f"{launch_id}: its receipt is not published: {e.strerror}", 3)
    try:  # without a receipt too: what the command left behind may keep us here
        conn.send(end.trouble.encode("utf-8", "surrogateescape"))
        conn.shutdown(_socket.SHUT_WR)
    except OSError as e:
        tell(f"{launch_id}: its caller is gone: {e.strerror}", 3)
    conclude_hosted(ledger, entry, end, handoff, conn, attached)
    return OK


def stop_hosted(paths: Paths, entry: Launch) -> bool:
    """End a launch with TERM, HUP, KILL; False when it lives on.

    The KILL goes to the command alone: its supervisor is to record the end.
    """
    pid, start = entry.pane, entry.pane_start
    if entry.direct:
        pid, start = entry.caller, entry.caller_start
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        if not process_lives(pid, start, entry.boot):
            break
        targets = [pid]
        if number == signal.SIGKILL and not entry.direct:
            children = read_file(f"/proc/{pid}/task/{pid}/children").split()
            targets = [int(child) for child in children] or [pid]
        for each in targets:
            try:
                os.kill(each, number)
            except ProcessLookupError:
                continue  # it has ended meanwhile
        wait_for_process(pid, TERM_GRACE if number == signal.SIGTERM else LOST_GRACE)
    if not entry.direct:
        stop_scope(paths, entry.unit)
        wait_for_process(pid, SCOPE_STOP)
    return not process_lives(pid, start, entry.boot)


def restore_locale() -> None:
    """Undo what Python itself did to LC_CTYPE when it started: a command gets the caller's.

    Source: PEP 538; what /proc shows is the environment as it was given.
    """
    if os.environ.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        try:
            given = read_file("/proc/self/environ").split("\0")
        except OSError:
            return
        os.environ.pop("LC_CTYPE")
        os.environ.update(e.partition("=")[::2] for e in given if e.startswith("LC_CTYPE="))


def cmd_host(argv: Sequence[str], shim: str = "") -> int:
    """Run a command in a terminal of its own that can be watched; answer with its status."""
    restore_locale()
    if shim:
        order = Order((shim, *argv), find_program(shim, os.environ))
        return host(order)
    name, pane_stdio, command = parse_host(argv)
    program = command[0] if "/" in command[0] else find_program(command[0], os.environ)
    return host(Order(command, program or command[0], name, pane_stdio))


# ---- Commands -------------------------------------------------------------


class Start(NamedTuple):
    """What every command begins with."""

    paths: Paths
    config: Config
    specs: tuple[Spec, ...]
    sound: bool  # manifest, registry and config were read without a complaint
    glance: Glance | None = None


def begin(*, quiet: bool = False, glance: bool = False) -> Start:
    """Read configuration, manifest and registry, and say what is wrong with them.

    With `glance` look meanwhile at what lives, for a world in which all does.
    """
    paths = Paths.from_env(os.environ)
    if paths.runtime:
        os.environ["XDG_RUNTIME_DIR"] = paths.runtime
    make_state(paths)
    config, warnings, bad_config = load_config(paths)
    asked = ask_manifest(config)
    seen = read_glance(paths, config) if glance else None
    sweep(paths.state)
    sweep(job_folder(paths))  # a job whose launcher died before it was taken up is void
    sweep(*os.path.split(os.path.realpath(paths.trust)))
    specs, complaints, stale = load_set(paths, config, asked)
    for line in (*warnings, *complaints) if not quiet else warnings if bad_config else ():
        tell(line, 4)
    return Start(paths, config, specs, not (bad_config or stale or complaints), seen)


def find_name(spec: Spec, world: World) -> str:
    """Return the name of a live session in tmux, not of one its pane was moved to; "" unknown."""
    run_ = world.facts.get(spec.name, Facts()).run
    shown = world.by_pid.get(run_.pid, ()) if run_ is not None else ()
    if any(p.session == spec.name for p in shown):
        return spec.name
    name = choose_session((p for p in shown if p.ours), [s.name for s in world.specs])
    return "" if classify_name(name) else name


def file_current(paths: Paths, spec: Spec, name: str, records: Sequence[Record]) -> None:
    """File a live session's conversation under a name where no hook did; an empty one waits."""
    facts = read_facts(paths, spec.name, spec.directory, os.listdir(paths.state), boot_id())
    current = choose_witnesses(spec, facts, records)[:1]
    filed = parse_ids(read_state(paths.of(name, "id")))
    if not current or filed[:1] == current:
        return
    if not filed or read_transcripts(paths.claude, current).resumable.get(current[0]):
        record_id(paths, name, current[0])


def follow_name(
    start_: Start, spec: Spec, names: set[str], heirs: Sequence[str], world: World
) -> None:
    """Register the name a live session was given in tmux, in place of its earlier `heirs`."""
    paths, facts = start_.paths, world.facts[spec.name]
    name = find_name(spec, world)
    if name == spec.name and not heirs and not world.records:
        return
    renamed = name not in names and name != ""
    if renamed:
        args = start_.config.start_args if spec.declared else spec.args
        register(paths, Spec(name, spec.directory, args=args, renamed=spec.name))
    its = name if renamed or name in heirs else spec.name
    if renamed or choose_witnesses(spec, facts, world.records)[:1] != facts.ids[:1]:
        file_current(paths, spec, its, world.records)
    late = [heir for heir in heirs if heir != its]
    if late and name == its:
        unregister(paths, late)


def tidy(start_: Start, world: World) -> None:
    """Keep the state in step with what lives: under the lock, re-reading first.

    Registers a renamed session under its new name with its conversation, files the id of
    a live session that never had a supervisor, and drops rows that `run` had to leave.
    """
    paths = start_.paths
    names = {spec.name for spec in (*start_.specs, *read_registry(paths)[0])}
    heirs: dict[str, list[str]] = {}
    for spec in start_.specs:
        heirs.setdefault(spec.renamed, []).append(spec.name)
    for spec in start_.specs:
        facts = world.facts[spec.name]
        ended = facts.retired and is_retired(paths, spec.name)  # still: it may have been revived
        if ended and not spec.declared:
            if not parse_retired(spec.name, read_state(paths.of(spec.name, "retired"))).directory:
                retire(paths, spec, "by an older installation")  # its mark was an empty file
            unregister(paths, [spec.name])
        if facts.run_live:
            follow_name(start_, spec, names, heirs.get(spec.name, ()), world)
        here = facts.run is None and any(p.session == spec.name for p in world.panes)
        for record in world.records if here else ():
            mine = record.tmux == spec.name and record.directory == spec.directory
            if mine and record.alive and record.visible and is_session_id(record.session_id):
                record_id(paths, spec.name, record.session_id)


def tidy_up(start_: Start, world: World) -> None:
    """Tidy under the lock; what cannot be written is said, and everything else goes on."""
    try:
        with_lock(start_.paths, lambda: tidy(start_, world))
    except Failure as e:
        tell(f"the state folder is not kept in step: {e}", 4)


def take_world(start_: Start, *, records: bool = False, insist: Iterable[str] = ()) -> World:
    """Read the world; a tmux server whose socket file was deleted is asked to make it anew."""
    paths, config, specs = start_.paths, start_.config, start_.specs
    world = read_world(paths, config, specs, records=records, insist=insist)
    if world.blind and any(recover_socket(s) for s in read_sockets(config, live_runs(world.facts))):
        tell("the tmux server made its deleted socket file anew")
        return read_world(paths, config, specs, records=records, insist=insist)
    return world


def has_left(paths: Paths, name: str, *kinds: str) -> bool:
    """Tell whether one of these state files is there for a name, whatever is in it."""
    return not classify_name(name) and any(os.path.exists(paths.of(name, k)) for k in kinds)


def revive(start_: Start, names: Sequence[str], dry_run: bool = False) -> Start:
    """Take the mark of a deliberate end off the named sessions and put their rows back.

    Raises Failure for a name that nothing is known of.  A dry run changes no file.
    """
    specs = {spec.name: spec for spec in start_.specs}
    for name in names:
        path = start_.paths.of(name, "retired")
        known = name in specs or has_left(start_.paths, name, "retired", "run")
        if classify_name(name) or not known:
            raise Failure(f"no session {name!r}", hint=f"{PROG} list")
        if not os.path.exists(path):
            continue
        spec = specs.get(name) or parse_retired(name, read_state(path))
        if not spec.directory:
            hint = f"cd DIR && {PROG} open --new {name}"
            raise Failure(f"{name}: its directory is not known", hint=hint)

        def act(spec: Spec = spec, path: str = path) -> None:
            if not spec.declared:
                register(start_.paths, spec)
            remove(path)

        if not dry_run:
            with_lock(start_.paths, act)
        specs[name] = spec
    return start_._replace(specs=physical(specs.values()))


def is_trusted_unasked(config: Config, spec: Spec) -> bool:
    """Tell whether a session's folder may be trusted without a word of its person."""
    return spec.declared or (config.trust_open and owner_of(spec.directory) == os.getuid())


def trust_unasked(paths: Paths, spec: Spec) -> bool:
    """Trust a session's folder; False if it was.  Another user's is named.  Raises Failure."""
    changed = trust_folder(paths, spec.directory)
    if changed and owner_of(spec.directory) != os.getuid():
        tell(f"{spec.directory} belongs to another user: trusted as the manifest declares it", 4)
    return changed


def prepare(paths: Paths, config: Config, decision: Decision, binary: str) -> Job:
    """Answer the trust question for a session and return its job.  Raises Failure."""
    spec = decision.spec
    if is_trusted_unasked(config, spec):
        try:
            trust_unasked(paths, spec)
        except Failure as e:
            tell(f"{spec.name}: not trusted beforehand: {e}", 4)
    return session_job(paths, config, spec, decision.resume, binary)


def decide_unlaunched(wanted: Iterable[Decision], why: Failure) -> dict[str, Outcome]:
    """Return what is said of sessions that could not be launched."""
    unknown = (d._replace(verdict=UNKNOWN, hint=why.hint) for d in wanted)
    return {d.spec.name: Outcome(d, False, f"not launched: {why}") for d in unknown}


def prepare_wave(
    start_: Start, wave: Sequence[Decision], binary: str
) -> tuple[dict[str, Job], dict[str, Outcome]]:
    """Return the jobs of a wave, and what came of the sessions that get none."""
    jobs: dict[str, Job] = {}
    refused: dict[str, Outcome] = {}
    for d in wave:
        try:
            jobs[d.spec.name] = prepare(start_.paths, start_.config, d, binary)
        except Failure as e:
            refused.update(decide_unlaunched([d], e))
    return jobs, refused


def is_storm(died: Sequence[float]) -> bool:
    """Tell whether launches died so close together that something they share is the cause."""
    return len(died) >= STORM and died[-1] - died[-STORM] <= STORM_WINDOW


def launch_all(start_: Start, wanted: Sequence[Decision], world: World) -> list[Outcome]:
    """Launch sessions in waves and see each come up, be held by a prompt, or die."""
    paths, config = start_.paths, start_.config
    binary, news = find_claude(paths, config)
    for line in filter(None, (news, wait_for_route(config.network_wait))):
        tell(line, 4)
    socket = read_sockets(config, live_runs(world.facts))[0]
    size = max(1, int(config.parallel) or 2 * (os.cpu_count() or 1))
    pending: dict[str, Decision] = {}
    outcomes: dict[str, Outcome] = {}
    died: list[float] = []
    last = time.monotonic()

    def look(until: float) -> None:
        left = {n: d for n, d in pending.items() if n not in outcomes}
        outcomes.update(watch(paths, left, socket, until, died) if left else {})

    for at in range(0, len(wanted), size):
        wave = wanted[at : at + size]
        if is_storm(died):
            why = f"{STORM} sessions ended at once; the cause is shared, launching stopped"
            outcomes.update(
                {d.spec.name: Outcome(d._replace(verdict=UNKNOWN), False, why) for d in wave}
            )
            continue
        jobs, refused = prepare_wave(start_, wave, binary)
        outcomes.update(refused)
        wave = [d for d in wave if d.spec.name in jobs]
        try:
            done = launch(paths, wave, jobs, socket)
        except Failure as e:  # what was launched before is still seen to come up
            outcomes.update(decide_unlaunched([*wave, *wanted[at + size :]], e))
            break
        for line in filter(None, (done.complaint, done.warning)):
            tell(line, 4)
        last = time.monotonic()
        pending.update({d.spec.name: d for d in done.decisions})
        for name, d in done.late.items():
            outcomes[name] = Outcome(d, d.verdict in FINE, d.why)
        look(time.monotonic() + (WAVE if at + size < len(wanted) else 0))
    look(last + config.verify)
    if is_storm(died):
        tell(f"{STORM} sessions ended at once: something that they share is the cause", 3)
    for name, d in pending.items():
        why = f"not up after {config.verify:g} s"
        hint = f"{PROG} attach {name}"
        outcomes.setdefault(name, Outcome(d._replace(verdict=UNKNOWN, hint=hint), False, why))
    return [outcomes[d.spec.name] for d in wanted]


def fetch(config: Config) -> None:
    """Fetch the manifest's branch for the next tick, into a clone of our own; never an error."""
    try:
        if not config.clone or config.fetch is False or os.stat(config.clone).st_uid != os.getuid():
            return
        ref = config.ref if config.ref.startswith("refs/") else f"refs/remotes/{config.ref}"
        parts = ref.split("/", 3)  # git reads "origin/main" too
        if parts[:2] != ["refs", "remotes"] or len(parts) != 4:
            return
        known = read_git_config(config.clone, r"^(remote\..*\.url|core\.sshcommand)$")
        if f"remote.{parts[2]}.url" in known and not parts[2].startswith("-"):
            spec = f"+refs/heads/{parts[3]}:{ref}"
            quiet = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance")
            argv = ("fetch", *quiet, parts[2], spec)
            ssh = "core.sshCommand=ssh -o BatchMode=yes -o ConnectTimeout=10"
            options = () if known.get("core.sshcommand") else ("-c", ssh)
            asked = start_git(config.clone, *argv, owner=os.getuid(), options=options)
            asked.finish(timeout=FETCH_TIMEOUT)
    except OSError as e:
        tell(f"the manifest could not be fetched: {config.clone}: {e.strerror}", 4)
    except Failure as e:
        tell(f"the manifest could not be fetched: {e}", 4)


def notify(config: Config, messages: Iterable[str]) -> None:
    """Run the command that tells a person, once for each message; a failure is a warning.

    One that does not answer is not tried again for the others.
    """
    for message in messages if config.notify else ():
        line = f"{PROG} on {os.uname().nodename}: {message}"
        try:
            run([*config.notify, line], label="notify.command", timeout=NOTIFY_TIMEOUT)
        except ToolError as e:
            tell(str(e), 4)
        except Failure as e:
            tell(str(e), 4)
            return


def note_verdicts(start_: Start, world: World, outcomes: Iterable[Outcome]) -> None:
    """Note what holds each session or lets it rest, and tell a person of each change.

    The note comes first: told at most once, also when this process is killed.
    """
    paths, messages = start_.paths, []
    for outcome in outcomes:
        name, verdict = outcome.decision.spec.name, outcome.decision.verdict
        known = world.facts[name].health.notified
        news = choose_notice(verdict, known)
        if news == known:
            continue
        health = parse_health(read_state(paths.of(name, "health")))
        write_state(paths.of(name, "health"), format_health(health._replace(notified=news)))
        if news:
            messages.append(format_outcome(outcome))
    notify(start_.config, messages)


def living_name(start_: Start, name: str) -> str:
    """Return the name a row lives on under since it was renamed in tmux, or its own."""
    heirs = (s.name for s in start_.specs if s.renamed == name)
    kept = (heir for heir in heirs if not is_retired(start_.paths, heir))
    return next(kept, name)


def add_urls(paths: Paths, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the addresses at which a phone finds their sessions."""
    try:
        urls = {r.pid: r.url for r in read_records(paths.claude)[0] if r.alive and r.url}
        names = [o.decision.spec.name for o in outcomes] if urls else []
        runs = [parse_supervisor(read_state(paths.of(name, "run"))) for name in names]
    except Failure as e:
        tell(f"no address for the phone is known: {e}", 4)
        return list(outcomes)
    known = {n: urls.get(run_.claude, "") for n, run_ in zip(names, runs) if run_ is not None}
    return [o._replace(url=known.get(o.decision.spec.name, "")) for o in outcomes]


def cmd_start(names: Sequence[str] = (), dry_run: bool = False) -> int:
    """Bring back every session of the restore set that is not there, and report each."""
    start_ = begin(glance=not names)
    names = [living_name(start_, name) for name in names]
    if names:
        start_ = revive(start_, names, dry_run)
    steady = start_.glance and read_steady(start_.paths, start_.specs, start_.glance)
    world = steady or take_world(start_, insist=names)
    if names and dry_run:  # their marks are still there
        unmarked = {n: f._replace(retired=False) for n, f in world.facts.items() if n in names}
        world = world._replace(facts={**world.facts, **unmarked})
    decisions = [d for d in plan(world) if not names or d.spec.name in names]
    missing = set(names) - {d.spec.name for d in decisions}
    if missing:
        raise Failure(f"no session {sorted(missing)[0]!r}", hint=f"{PROG} list")
    wanted = [d for d in decisions if d.verdict == LAUNCH]
    if dry_run:
        for d in decisions:
            print(format_outcome(Outcome(d, d.verdict in FINE, d.why or d.resume)))
        return OK if start_.sound and all(d.verdict in FINE for d in decisions) else TROUBLE
    tidy_up(start_, world)
    try:
        launched = launch_all(start_, wanted, world) if wanted else []
    except Failure as e:
        launched = list(decide_unlaunched(wanted, e).values())
    by_name = {o.decision.spec.name: o for o in launched}
    outcomes = [by_name.get(d.spec.name, Outcome(d, d.verdict in FINE, d.why)) for d in decisions]
    if launched or names or os.isatty(2):  # a tick that finds all alive reads no records
        outcomes = add_urls(start_.paths, outcomes)
    for ok, level in ((True, 6), (False, 3)):  # what needs a person stands last
        tell_all((format_outcome(o) for o in outcomes if o.ok == ok), level)
    try:
        note_verdicts(start_, world, outcomes)
    except Failure as e:
        tell(f"nobody was notified: {e}", 4)
    if os.environ.get("PS_UNIT"):
        fetch(start_.config)
    return OK if start_.sound and all(o.ok for o in outcomes) else TROUBLE


def list_rows(world: World, decisions: Sequence[Decision]) -> list[dict[str, object]]:
    """Return what `list` knows of each session, as `--json` prints it."""
    rows: list[dict[str, object]] = []
    gone = decide_retired(world)
    for d in sorted((*decisions, *gone), key=lambda d: (d.verdict == RETIRED, d.spec.name)):
        facts = world.facts.get(d.spec.name, Facts())
        ids = choose_witnesses(d.spec, facts, world.records)
        pids = {facts.run.claude if facts.run and facts.run_live else 0, d.pid} - {0}
        url = next((r.url for r in world.records if r.alive and r.pid in pids and r.url), "")
        rows.append(
            {
                "name": d.spec.name,
                "state": d.verdict,
                "issue": d.spec.issue or None,
                "id": d.resume or (ids[0] if ids else None),
                "url": url or None,
                "directory": d.spec.directory or None,
                "note": d.why or None,
                "hint": d.hint or None,
                "declared": d.spec.declared,
                "pid": d.pid or None,
                "pane": d.pane or None,
            }
        )
    return rows


def hosted_row(hosted: Hosted) -> dict[str, object]:
    """Return what `list --json` prints of a launch: its record, its state, how to see it."""
    row = parse_object(format_launch(hosted.entry))
    shown = {"attach": attach_command(hosted) or None, "note": hosted.trouble or None}
    return {**row, "state": hosted.state, **shown}


def read_launches(start_: Start) -> tuple[list[Hosted], bool]:
    """Return the launches after a sweep, and whether the ledger could be read; else say why."""
    ledger = ledger_folder(start_.paths)
    try:
        sweep_ledger(start_.paths, ledger, start_.config.keep_days)
        return read_hosted(ledger), True
    except Failure as e:
        report(e)
    except OSError as e:
        report(Failure(f"{ledger}: {e.strerror}"))
    return [], False


def cmd_list(as_json: bool = False) -> int:
    """Print the restore set with each session's state, then the retired."""
    start_ = begin()
    world = take_world(start_, records=True)
    decisions = plan(world)
    tidy_up(start_, world)
    rows = list_rows(world, decisions)
    launches, sound = read_launches(start_)
    if as_json:
        import json

        hosted = [hosted_row(h) for h in launches]
        print(json.dumps({"version": 1, "sessions": rows, "hosted": hosted}, indent=1))
    else:
        keys = ("name", "state", "issue", "id", "url", "directory", "note")
        head = ("NAME", "STATE", "PLAN", "ID", "URL", "DIRECTORY", "NOTE")
        print(
            format_table([head, *(tuple(str(row[k] or "") for k in keys) for row in rows)]), end=""
        )
        for d in decisions:
            if d.verdict not in FINE and d.hint:
                tell(f"{d.spec.name}: {d.verdict}: {d.why} (try: {d.hint})", 4)
        if launches:
            print("\n" + format_hosted(launches), end="")
    fine = sound and start_.sound and all(d.verdict in FINE for d in decisions)
    return OK if fine and not any(h.trouble for h in launches) else TROUBLE


def cmd_manifest() -> int:
    """Print the manifest as the unit reads it, or the last good copy with the reason."""
    paths = Paths.from_env(os.environ)
    make_state(paths)
    config, warnings, bad_config = load_config(paths)
    _, complaints, stale = load_manifest(paths, config, ask_manifest(config))
    for line in (*warnings, *complaints):
        tell(line, 4)
    if not (config.clone or config.file):
        tell("no manifest is configured", 6)
        return TROUBLE if bad_config else OK
    text = read_state(f"{paths.state}/manifest.tsv") if stale else ask_manifest(config)()
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))  # whatever the locale says
    return TROUBLE if stale or complaints or bad_config else OK


def cmd_retire(name: str) -> int:
    """Mark a session as ended on purpose; what runs in it is left running."""
    start_ = begin()
    paths = start_.paths
    specs = {spec.name: spec for spec in start_.specs}
    found = specs.get(name) or specs.get(living_name(start_, name))
    found = found or find_rowless(paths, name, boot_id())
    if found is None:
        if has_left(paths, name, "retired"):
            tell(f"{name}: already retired")
            return OK
        raise Failure(f"no session {name!r}", hint=f"{PROG} list")
    spec = found
    heirs = (s.name for s in start_.specs if s.renamed == name)
    names = list(dict.fromkeys(n for n in (name, spec.renamed, *heirs) if n))

    def act() -> None:
        for each in names:
            retire(paths, specs.get(each, spec)._replace(name=each), "retired")
        unregister(paths, names)

    with_lock(paths, act)
    also = f" (also known as {' and '.join(names[1:])})" if names[1:] else ""
    tell(f"{name}{also}: retired; {PROG} start {name} brings it back in the same conversation")
    return OK


# ---- Opening and attaching ------------------------------------------------


def shown_name(spec: Spec, world: World) -> tuple[str, str]:
    """Return the socket and live name under which a session can be attached, "" when not live."""
    run_ = world.facts.get(spec.name, Facts()).run
    mine = [p for p in world.panes if run_ is not None and p.pid == run_.pid and not p.dead]
    mine += [p for p in world.panes if p.session == spec.name and not p.dead]
    if not mine:
        return "", ""
    names = [p.session for p in mine]
    return mine[0].socket, spec.name if spec.name in names else names[0]


def read_directory(claude: str, session_id: str) -> str:
    """Return the directory in which a conversation began, "" when that cannot be told."""
    root = f"{claude}/projects"
    for folder in os.listdir(root) if os.path.isdir(root) else ():
        try:
            for record in read_lines(f"{root}/{folder}/{session_id}.jsonl"):
                if isinstance(record.get("cwd"), str):
                    return os.path.realpath(str(record["cwd"]))
        except OSError:
            continue  # not there, or not to be read
    return ""


def to_attic(paths: Paths, name: str) -> None:
    """Move an .id file to the attic: an id is never deleted by us.  Raises OSError."""
    os.makedirs(f"{paths.state}/attic", mode=0o700, exist_ok=True)
    os.rename(paths.of(name, "id"), f"{paths.state}/attic/{name}.{time.time_ns()}.id")


def set_aside(paths: Paths, name: str, directory: str) -> None:
    """Make a name free of what a session of another folder left.  Call it under the lock."""
    ids = parse_ids(read_state(paths.of(name, "id")))
    if ids and read_directory(paths.claude, ids[0]) not in ("", directory):
        to_attic(paths, name)
        remove(paths.of(name, "run"))
        tell(f"{name}: an earlier session of this name was in another folder; its ids are kept")


def read_mark(paths: Paths, name: str) -> str | None:
    """Return the mark of a deliberate end as it stands, None where there is none."""
    path = paths.of(name, "retired")
    return read_state(path) if os.path.exists(path) else None


def reserve(
    start_: Start, directory: str, wished: str, new: bool, world: World
) -> tuple[Spec, str | None]:
    """Register a session for a folder under a name that is nobody else's; return its mark too.

    Only a mark that names no folder can be in its way.
    """
    paths = start_.paths
    chosen: list[tuple[Spec, str | None]] = []
    why = classify_directory(directory)
    if why:  # its row would lead elsewhere after a crash
        raise Failure(f"open: {why}: {directory!r}", hint="command claude")

    def act() -> None:
        opened, _ = read_registry(paths)
        rows = physical((*start_.specs, *world.left, *opened))
        names = {spec.name for spec in rows}
        owners = dict.fromkeys({p.session for p in world.panes} - names, "")
        owners.update({spec.name: spec.directory for spec in rows})
        if wished in owners:
            raise Failure(f"open: the name {wished!r} is taken", hint=f"{PROG} list")
        if new:
            owners = dict.fromkeys(owners, "")
        name = wished or plan_name(directory, os.path.realpath(paths.home), user_name(), owners)
        if name not in names:
            set_aside(paths, name, directory)
        spec = Spec(name, directory, args=start_.config.open_args)
        chosen.append((spec, read_mark(paths, name)))
        register(paths, spec)
        remove(paths.of(name, "retired"))

    with_lock(paths, act)
    return chosen[0]


def trust_opened(paths: Paths, config: Config, directory: str) -> None:
    """Answer the trust question for the folder a person opens a session in, and say so."""
    if not config.trust_open:
        return
    if os.stat(directory).st_uid != os.getuid():
        tell(f"{directory} belongs to another user: it is not trusted for you", 4)
        return
    try:
        if trust_folder(paths, directory):
            home = os.path.realpath(paths.home)
            below = " and every folder below it" if directory == home else ""
            tell(f"Claude now trusts {directory}{below} (trust.open: false turns this off)")
    except Failure as e:
        tell(f"{directory} is not trusted beforehand: {e}", 4)


def plan_resume(
    decision: Decision, world: World, wished: str, retired: bool, back: bool
) -> Decision:
    """Return the decision of `open`: which conversation, or why none.

    An ended session gets a new one unless `back` asks for the old; `wished` names one.
    """
    if decision.verdict in (LIVE, BLOCKED):
        facts = world.facts.get(decision.spec.name, Facts())
        if wished and wished not in choose_witnesses(decision.spec, facts, world.records)[:1]:
            why, hint = "it lives in another conversation", f"{PROG} open --new --resume {wished}"
            return decision._replace(verdict=HELD, why=why, hint=hint)
        return decision
    if wished and decision.verdict not in (FOREIGN, GONE):
        held = decide_held(decision.spec, wished, world)
        return held or Decision(decision.spec, LAUNCH, wished)
    if decision.verdict == UNKNOWN and world.no_projects and decision.why == world.no_projects:
        # Claude makes the folder at the first prompt ever; a plain claude would not mind either.
        return Decision(decision.spec, LAUNCH, "", f"a new conversation: {world.no_projects}")
    if retired and not back and decision.verdict in (LAUNCH, HELD, RETIRED):
        return Decision(decision.spec, LAUNCH, "", "a new conversation")
    return decision


def read_given(pid: int) -> tuple[str, ...]:
    """Return what a claude was given that says how, not which, conversation it holds."""
    try:
        return choose_adopted_args(read_file(f"/proc/{pid}/cmdline").split("\0"))
    except OSError:
        return ()


def take_rowless(start_: Start, spec: Spec, world: World) -> Spec:
    """Give a session that lives without a row one, as its person opens it.  Raises Failure.

    It comes back with what it runs with now: no more.
    """
    run_ = world.facts[spec.name].run
    if classify_directory(spec.directory):
        raise Failure(f"{spec.name}: {classify_directory(spec.directory)}: {spec.directory!r}")
    spec = spec._replace(args=read_given(run_.claude) if run_ is not None else ())
    with_lock(start_.paths, lambda: register(start_.paths, spec))
    tell(f"{spec.name}: it was no longer declared; it is opened now and will come back")
    return spec


def take_opened(
    start_: Start, world: World, name: str, new: bool
) -> tuple[Start, Spec, str | None]:
    """Return the session that `open` means, its row registered, and the mark taken off it."""
    directory = os.path.realpath(os.getcwd())
    rows = {spec.name: spec for spec in (*world.left, *world.specs)}
    if name and not new and name not in rows:
        raise Failure(f"open: no session {name!r}", hint=f"{PROG} open --new {name}")
    if name and classify_name(name):
        raise Failure(f"open: {classify_name(name)}")
    if new and name in rows:
        raise Failure(f"open: the name {name!r} is taken", hint=f"{PROG} open {name}")
    spec = rows.get(name) if name else plan_open(directory, world)
    if new or spec is None:
        spec, mark = reserve(start_, directory, name, new, world)
    else:
        mark = read_mark(start_.paths, spec.name)
        start_ = start_ if mark is None else revive(start_, [spec.name])
        if spec.name not in {s.name for s in start_.specs}:
            spec = take_rowless(start_, spec, world)
    others = [s for s in start_.specs if s.name != spec.name]
    return start_._replace(specs=(*others, spec)), spec, mark


def show_opened(start_: Start, decision: Decision, socket: str) -> int:
    """Attach the terminal to a session just launched, or without one see it come up."""
    name, paths = decision.spec.name, start_.paths
    if not (os.isatty(0) and os.isatty(1)):
        until = time.monotonic() + start_.config.verify
        outcome = watch(paths, {name: decision}, socket, until).get(name)
        if outcome is None:
            why = f"{name}: not up after {start_.config.verify:g} s"
            raise Failure(why, hint=f"{PROG} attach {name}")
        if not outcome.ok:
            why = f"{name}: {outcome.decision.verdict}: {outcome.why}"
            raise Failure(why, hint=outcome.decision.hint)
        tell(f"{name}: {outcome.why}")
    panes, blind = read_panes((socket,))
    if not any(p.session == name for p in panes):
        hint = f"{PROG} logs {name}"
        raise Failure(f"{name}: {blind or describe_end(paths, name)}", hint=hint)
    return attach(socket, name)


def refuse_opened(paths: Paths, decision: Decision, fresh: bool) -> NoReturn:
    """Say why a session is not opened; a row that was made for it is dropped.  Raises Failure."""
    name = decision.spec.name
    if fresh:
        with_lock(paths, lambda: unregister(paths, [name]))
    raise Failure(f"{name}: {decision.verdict}: {decision.why}", hint=decision.hint)


def put_back(start_: Start, name: str, mark: str) -> None:
    """Put back the mark that `open` took off a session it then did not launch."""
    paths, rows = start_.paths, {spec.name for spec in start_.specs}

    def act() -> None:
        write_state(paths.of(name, "retired"), mark)
        if name not in rows:
            unregister(paths, [name])

    with_lock(paths, act)


def launch_opened(start_: Start, decision: Decision, world: World, binary: str, fresh: bool) -> str:
    """Launch the one session that a person opens, return its socket; `fresh`: its row is of now."""
    paths, config, spec = start_.paths, start_.config, decision.spec
    trust_opened(paths, config, spec.directory)
    socket = read_sockets(config, live_runs(world.facts))[0]
    jobs = {spec.name: session_job(paths, config, spec, decision.resume, binary)}
    done = launch(paths, [decision], jobs, socket)
    for line in filter(None, (done.complaint, done.warning)):
        tell(line, 4)
    came = done.late.get(spec.name, decision)
    if came.verdict not in FINE:
        refuse_opened(paths, came, fresh)
    return socket


def start_opened(
    start_: Start,
    spec: Spec,
    resume: str | None,
    claude: tuple[str, str],
    mark: str | None,
    fresh: bool,
) -> tuple[Decision, World, str]:
    """Launch what `open` means where it does not live; return the socket of what was launched."""
    paths = start_.paths
    world = take_world(start_, records=True, insist=(spec.name,))
    run_ = world.facts[spec.name].run
    if run_ is not None and not run_.pane and world.facts[spec.name].run_live:
        with_lock(paths, lambda: None)  # who is launching it holds the lock until it is there
        world = take_world(start_, records=True, insist=(spec.name,))
    decision = next(d for d in plan(world) if d.spec.name == spec.name)
    if resume:
        world = world._replace(jobs=read_jobs(paths.claude))
    decision = plan_resume(decision, world, resume or "", mark is not None, resume == "")
    if decision.verdict not in (LIVE, BLOCKED, LAUNCH):
        refuse_opened(paths, decision, fresh)
    if decision.verdict != LAUNCH:
        return decision, world, ""
    binary, news = claude
    for line in filter(None, (news, decision.why)):
        tell(line)
    return decision, world, launch_opened(start_, decision, world, binary, fresh)


def cmd_open(name: str = "", resume: str | None = None, new: bool = False) -> int:
    """Start or re-attach the session of this folder; a crashed one is resumed."""
    start_ = begin()
    paths, config = start_.paths, start_.config
    try:
        os.getcwd()
    except FileNotFoundError:
        raise Failure("open: this folder was removed", hint="cd ..") from None
    if resume and not is_session_id(resume):
        raise Failure(f"open: not a conversation id: {resume!r}", status=USAGE)
    if resume:
        found = read_transcripts(paths.claude, [resume])
        if not found.resumable.get(resume):
            why = found.trouble or found.unreadable.get(resume)
            raise Failure(f"open: {why or f'no conversation {resume} on disk'}")
        resume = choose_successor(resume, found.moved)
    claude = find_claude(paths, config)
    before, rows = start_, {spec.name for spec in start_.specs}
    start_, spec, mark = take_opened(start_, take_world(start_), name, new)
    fresh = spec.name not in rows and mark is None
    try:
        decision, world, socket = start_opened(start_, spec, resume, claude, mark, fresh)
    except (Failure, OSError, KeyboardInterrupt):
        if mark is not None:
            put_back(before, spec.name, mark)
        raise
    if decision.verdict == LAUNCH:
        return show_opened(start_, decision, socket)
    socket, shown = shown_name(spec, world)
    if not shown:
        raise Failure(f"{spec.name}: {decision.why}", hint=f"{PROG} list")
    facts = world.facts[spec.name]
    if facts.run and facts.run_live and facts.run.claude and not name:
        pids = (facts.run.pid, facts.run.claude)
        there = [os.path.realpath(f"/proc/{pid}/cwd") for pid in pids]
        if spec.directory not in there and os.path.isdir(there[0]):
            why = f"it lives in {there[0]}, not here"
            raise Failure(f"{spec.name}: {why}", hint=f"{PROG} open --new")
    return attach(socket, shown)


def ask_name(names: Sequence[str]) -> str:
    """Return the one name there is, or the one a person picks by its number."""
    if len(names) == 1:
        return names[0]
    if not names:
        raise Failure("no session is live", hint=f"{PROG} start")
    if not (os.isatty(0) and os.isatty(2)):
        why = f"attach: which one: {', '.join(names)}"
        raise Failure(why, hint=f"{PROG} attach NAME", status=USAGE)
    for at, each in enumerate(names, 1):
        say(f"{at:3}  {each}")
    sys.stderr.write("number: ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not answer.isascii() or not answer.isdigit() or not 1 <= int(answer) <= len(names):
        raise Failure("attach: no such number")
    return names[int(answer) - 1]


def cmd_attach(name: str = "") -> int:
    """Show a live session on this terminal; without a name the only one, or a choice."""
    start_ = begin(quiet=True)
    world = take_world(start_)
    found = (*plan(world), *decide_retired(world))
    live = {d.spec.name: d.spec for d in found if d.verdict in (LIVE, BLOCKED)}
    ledger = ledger_folder(start_.paths)
    if not name:
        name = ask_name(
            [*sorted(live), *(h.entry.id for h in read_hosted(ledger) if attach_command(h))]
        )
    hosted = None if name in live else find_hosted(ledger, name)
    if name not in live and not (hosted and attach_command(hosted)):
        state = f": {format_state(hosted)}" if hosted else ""
        raise Failure(f"no live session {name!r}{state}", hint=f"{PROG} list")
    if hosted:
        socket, shown = hosted.entry.socket, hosted.entry.session
    else:
        socket, shown = shown_name(live[name], world)
    if not shown:
        raise Failure(f"{name}: its terminal is gone", hint=f"{PROG} list")
    if not (os.isatty(0) and os.isatty(1)) and not os.environ.get("TMUX"):
        hint = f"tmux -S {socket} capture-pane -p -t '={shown}:'"
        raise Failure(f"{name}: attach needs a terminal", hint=hint)
    return attach(socket, shown)


def find_target(word: str) -> tuple[Start, World, Spec | None, Hosted | None]:
    """Return the session, or else the launch, that a word names.  Raises Failure for neither."""
    start_ = begin(quiet=True)
    world = take_world(start_)
    rows = {spec.name: spec for spec in (*world.left, *world.specs)}
    hosted = None if word in rows else find_hosted(ledger_folder(start_.paths), word)
    if word not in rows and hosted is None:
        raise Failure(f"no session or launch {word!r}", hint=f"{PROG} list")
    return start_, world, rows.get(word), hosted


def cmd_capture(word: str) -> int:
    """Print what the screen of a session or a launch shows now."""
    _, world, spec, hosted = find_target(word)
    socket, shown = shown_name(spec, world) if spec else ("", "")
    if hosted and hosted.trouble:
        raise Failure(f"{word}: {hosted.trouble}", hint=f"{PROG} stop {word}")
    if hosted and hosted.alive:
        socket, shown = hosted.entry.socket, hosted.entry.session
    if not shown:
        raise Failure(f"{word}: it has no screen now", hint=f"{PROG} logs {word}")
    screen = Tmux(socket)("capture-pane", "-p", "-t", f"={shown}:").stdout
    sys.stdout.write(screen.rstrip("\n") + "\n")
    return OK


def cmd_logs(word: str) -> int:
    """Print how a session or a launch ended, its last screen, and what was said about it."""
    start_, world, _, hosted = find_target(word)
    if hosted:
        ledger = ledger_folder(start_.paths)
        print(f"{hosted.entry.id}: {format_state(hosted)}\n{format_launch(hosted.entry)}", end="")
        for line in read_state(f"{ledger}/{hosted.entry.id}.screen").splitlines():
            print(plain(line))
        return OK
    for d in plan(world):
        if d.spec.name == word:
            print(format_outcome(Outcome(d, d.verdict in FINE, d.why or d.resume)))
    for kind in ("exit", "health", "retired", "screen"):
        path = start_.paths.of(word, kind)
        text = read_state(path)
        if text:
            of = f" (of {iso(os.stat(path).st_mtime)})" if kind == "screen" else ""
            print(f"{word}.{kind}{of}:", *map(plain, text.splitlines()), sep="\n")
    unit = f"journalctl --user --no-pager --quiet -o short-iso -n {JOURNAL_LINES} --unit={UNIT}"
    try:
        said = run(unit.split(), check=False).stdout.splitlines()
    except Failure as e:
        said = []
        tell(f"the unit's journal cannot be read: {e}", 4)
    print("\n".join([line for line in said if f"{PROG}: {word}: " in line][-LOG_LINES:] or ["-"]))
    return OK


def choose_stopped(spec: Spec, world: World) -> tuple[int, bool]:
    """Return the process to end to stop a session, 0 for none, and whether the session lives.

    It is the claude, or what its pane runs while there is none yet.
    """
    facts = world.facts.get(spec.name, Facts())
    lives = facts.run is not None and facts.run_live
    claude = facts.run.claude if facts.run is not None and lives else 0
    shown = [p.pid for p in choose_panes(spec, world) if p.ours and not p.dead]
    return claude or (shown or [0])[0], lives


def cmd_stop(word: str) -> int:
    """End a session for good, or a launch: TERM first, KILL when that is not enough."""
    start_, world, spec, hosted = find_target(word)
    if hosted:
        entry = hosted.entry
        left = not entry.direct and process_lives(entry.pane, entry.pane_start, entry.boot)
        if (hosted.alive or left) and not stop_hosted(start_.paths, entry):
            raise Failure(f"{word}: it does not end", hint=f"ps -fp {entry.pane}")
        unit = entry.unit if hosted.state == LOST else ""
        if not stop_scope(start_.paths, unit):  # what ran in it may have survived its terminal
            raise Failure(f"{word}: systemd does not answer", hint=f"systemctl --user stop {unit}")
        tell(f"{entry.id}: {'stopped' if hosted.alive or left else format_state(hosted)}")
        return OK
    assert spec is not None
    if spec in start_.specs or not world.facts[word].retired:
        cmd_retire(word)
    pid, lives = choose_stopped(spec, world)
    if not pid:
        with_lock(start_.paths, lambda: None)  # who is launching it holds the lock, see cmd_open
        pid, lives = choose_stopped(spec, take_world(start_))
    if lives and not pid:
        raise Failure(f"{word}: it is being launched", hint=f"{PROG} stop {word}")
    for number in (signal.SIGTERM, signal.SIGKILL):
        if pid and process_start(pid):
            os.kill(pid, number)
            wait_for_process(pid, HUP_GRACE)
    return OK


# ---- Consent --------------------------------------------------------------

CONSENTS = ("Yes, I trust this folder", "Yes, I accept")  # the options' texts, 2.1.332
CURSOR = "❯"


def choose_key(text: str) -> str:
    """Return the key that brings a dialog's cursor onto its consent, Enter when it is there.

    "" when the screen offers no consent.  Lists wrap, so one direction is enough.
    """
    lines = [squeeze(line) for line in text.splitlines()]
    wanted = [at for at, line in enumerate(lines) if any(squeeze(c) in line for c in CONSENTS)]
    cursor = [at for at, line in enumerate(lines) if line.startswith(CURSOR)]
    if not wanted or not cursor:
        return ""
    if cursor[-1] == wanted[-1]:
        return "Enter"
    return "Down" if cursor[-1] < wanted[-1] else "Up"


def give_consent(tmux: Tmux, pane: str, until: float) -> list[str]:
    """Answer each consent prompt of a pane in turn; return what was answered.

    A key is sent only while a recognised prompt is on the screen, and looked at again.
    Raises Failure when a prompt stays.
    """
    answered: list[str] = []
    quiet = steady = 0
    before = ""
    while time.monotonic() < until:
        text = tmux.screens([pane]).get(pane, "")
        screen = classify_screen(text)
        if screen is None or not screen.consent:
            quiet += 1
            if quiet > 30 and answered:  # a second prompt may follow the first
                return answered
        else:
            quiet, steady = 0, steady + 1 if text == before else 0
            # A busy start loses keys and draws a dialog anew with its mark back (2.1.332):
            # look twice before a key, and send it again where nothing came of it.
            if steady == 1 or steady > 8:
                steady = 2
                key = choose_key(text)
                if key:  # a mode on top (copying, a complaint about ~/.tmux.conf) would eat it
                    leave_mode = ("#{pane_in_mode}", f"send-keys -X -t {pane} cancel", ";")
                    apart = ("set-option", "-p", "-t", pane, "synchronize-panes")
                    again = (";", "set-option", "-pu", *apart[2:])
                    send = (*apart, "off", ";", "send-keys", "-t", pane, key, *again)
                    tmux("if-shell", "-F", "-t", pane, *leave_mode, *send)
                if key == "Enter" and answered[-1:] != [screen.label]:
                    answered.append(screen.label)
        before = text
        time.sleep(0.1)  # a program's screen; nothing announces that it was drawn
    if not answered:
        raise Failure("no consent prompt was on the screen")
    return answered


def rerun_unit() -> None:
    """Let the unit run again, so that it returns to success; say when that was not possible."""
    try:
        run(["systemctl", "--user", "start", "--no-block", UNIT])
    except Failure as e:
        tell(f"the unit was not run again: {e}", 4)


def cmd_trust(name: str) -> int:
    """Give the consent that a session's prompts ask for, and let the unit succeed again."""
    start_ = begin(quiet=True)
    paths = start_.paths
    world = take_world(start_)
    decision = next((d for d in plan(world) if d.spec.name == name), None)
    if decision is None:
        raise Failure(f"no session {name!r}", hint=f"{PROG} list")
    run_ = world.facts[name].run
    if decision.verdict == BLOCKED and not (run_ and run_.pid == decision.pid):
        why = "what asks in its tmux session was not started by us"
        raise Failure(f"{name}: {why}: answer it yourself", hint=f"{PROG} attach {name}")
    if decision.spec in world.left:
        raise Failure(f"{name}: it is no longer declared", hint=f"{PROG} open {name}")
    changed = trust_folder(paths, decision.spec.directory)
    tell(f"{name}: {decision.spec.directory} {'is now' if changed else 'was already'} trusted")
    shown = next(iter(world.by_pid.get(decision.pid, ())), None)
    if shown is not None and not is_readable(shown):
        hint = f"{PROG} attach {name}"
        raise Failure(f"{name}: {decision.why}: what it asks cannot be seen", hint=hint)
    if decision.verdict == BLOCKED:
        pane = world.by_pid[decision.pid][0]  # its id alone may be that of a pane on another server
        screen = world.screens[pane.key]
        if not screen.consent:
            why = f"{screen.label} is not ours to answer"
            raise Failure(f"{name}: {why}", hint=f"{PROG} attach {name}")
        for label in give_consent(Tmux(pane.socket), pane.pane_id, time.monotonic() + 30):
            tell(f"{name}: answered {label}")
    world = take_world(start_)
    after = next(d for d in plan(world) if d.spec.name == name)
    if after.verdict == BLOCKED:
        raise Failure(f"{name}: still held: {after.why}", hint=f"{PROG} attach {name}")
    note_verdicts(start_, world, [Outcome(after, True, after.why)])
    rerun_unit()
    return OK


# ---- Installation ---------------------------------------------------------

# What a unit's environment lacks and a session needs; never a key or a token.
KEPT_NAMES = frozenset(
    """PATH XDG_STATE_HOME XDG_CONFIG_HOME CLAUDE_CONFIG_DIR TMUX_TMPDIR LANG LANGUAGE TZ
    SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS ANTHROPIC_BASE_URL AGENT_SESSIONS_DIR""".split()
)
KEPT_PREFIXES, KEPT_ENDS = ("LC_", "CLAUDE_CODE_USE_"), ("_proxy", "_PROXY")
SHELL_FUNCTION = f"""{BEGIN} (put here by `{PROG} install`)
unalias claude 2>/dev/null || :
function claude {{
  if [ "$#" -eq 0 ] && [ -t 0 ] && [ -t 1 ] && [ -z "${{TMUX-}}" ] &&
    [ -x "$HOME/.local/bin/{PROG}" ]; then
    "$HOME/.local/bin/{PROG}" open
  else
    AGENT_LEDGER_HUMAN=1 command claude "$@"
  fi
}}
if [ -n "${{BASH_VERSION-}}" ]; then
  function _persistent_sessions {{
    COMPREPLY=($(compgen -W "$("$HOME/.local/bin/{PROG}" _complete \
      "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" 2>/dev/null)" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  }}
  complete -F _persistent_sessions {PROG}
elif [ -n "${{ZSH_VERSION-}}" ]; then # before or after compinit
  function _persistent_sessions {{
    local line at
    read -cA line
    read -cn at
    set --
    [ "$at" -lt 3 ] || set -- "${{line[2]}}"
    reply=($("$HOME/.local/bin/{PROG}" _complete "$@" 2>/dev/null))
  }}
  compctl -K _persistent_sessions {PROG}
fi
{END}
"""


def choose_kept(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the unit is to know; a proxy address with a password is not."""
    return {
        key: value
        for key, value in sorted(environ.items())
        if (key in KEPT_NAMES or key.startswith(KEPT_PREFIXES) or key.endswith(KEPT_ENDS))
        and key.isidentifier()
        and value.isprintable()
        and not (("://" in value) and "@" in value.partition("://")[2].partition("/")[0])
    }


# What a provider that CLAUDE_CODE_USE_* chooses is reached with.
PROVIDERS = {
    "CLAUDE_CODE_USE_BEDROCK": ("AWS_",),
    "CLAUDE_CODE_USE_VERTEX": ("GOOGLE_APPLICATION_CREDENTIALS", "ANTHROPIC_VERTEX_", "CLOUD_ML_"),
    "CLAUDE_CODE_USE_FOUNDRY": ("ANTHROPIC_FOUNDRY_", "AZURE_"),
}


def choose_credentials(environ: Mapping[str, str]) -> list[str]:
    """Return the variables here without which a session cannot sign in or reach its provider.

    `install` records none of them for the unit, nor a proxy's address with a password.
    """
    used = tuple(p for flag, ps in PROVIDERS.items() if environ.get(flag) for p in ps)
    kept = choose_kept(environ)
    return [
        name
        for name, value in sorted(environ.items())
        if value
        and (name in KEY_NAMES or name.startswith(used) or name.endswith(KEPT_ENDS))
        and name not in kept
    ]


def format_dropin(env: Mapping[str, str]) -> str:
    """Return the unit's drop-in.  Quoting and %% as in systemd.syntax(7), systemd.unit(5)."""
    lines = []
    for key, value in env.items():
        lines.append(f'Environment="{key}={escape(value).replace("%", "%%")}"\n')
    return "[Service]\n" + "".join(lines)


def set_block(text: str, block: str) -> str:
    """Return an rc file with our block put in, replaced, or taken out ("" as block).

    Raises Failure when our marks in it do not pair.
    """
    lines = text.splitlines(keepends=True)
    marks = [
        (at, line.startswith(BEGIN))
        for at, line in enumerate(lines)
        if line.startswith((BEGIN, END))
    ]
    if [is_begin for _, is_begin in marks] not in ([], [True, False]):
        raise Failure(f"our marks ({BEGIN}) do not pair; nothing was changed")
    if marks:
        (first, _), (last, _) = marks
        return "".join(lines[:first]) + block + "".join(lines[last + 1 :])
    if not block:
        return text
    return text + ("" if not text or text.endswith("\n") else "\n") + block


def unit_folder(paths: Paths) -> str:
    """Return the folder of the user's own units."""
    return f"{os.path.dirname(paths.config)}/systemd/user"


def put(path: str, text: str, mode: int, done: list[str]) -> None:
    """Write an installed file where it differs, and note which it was.  Raises Failure."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            same = read_file(path) == text
        except FileNotFoundError:
            same = False
        if not same:
            sweep(*os.path.split(os.path.realpath(path)))
            write_atomic(path, text, mode, keep_mode=True)
            done.append(path)
    except OSError as e:
        raise Failure(f"{path}: {e.strerror}") from None


def reach(tree: ast.Module, command: str) -> list[ast.stmt]:
    """Return a program's statements but for definitions that one command never comes to.

    `dispatch` is kept and not followed: it names every command.
    """
    import ast

    defined: dict[str, ast.stmt] = {}
    for each in tree.body:
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
            defined[each.name] = each
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            defined.update((name.id, each) for name in names)
    droppable = {id(each) for each in defined.values()}
    kept = {id(defined["dispatch"])}
    todo = [each for each in tree.body if id(each) not in droppable]
    todo += [defined[name] for name in ("main", "exit_with", command)]
    while todo:
        each = todo.pop()
        if id(each) not in kept:
            kept.add(id(each))
            names = [node for node in ast.walk(each) if isinstance(node, ast.Name)]
            todo += [defined[name.id] for name in names if name.id in defined]
    return [each for each in tree.body if id(each) in kept]


def compile_parts(library: str) -> None:
    """Compile what each of PARTS needs of the installed program, as Python's cache of a link to it.

    Importing all of it is half of a tick's start, and a third of what a supervisor keeps in
    memory.  Python takes such a file for as long as the source has the age and size that are
    written in it, and compiles the whole source else: never older than the program, only
    smaller.  Source of the format: PEP 552.  Raises OSError.
    """
    import ast
    import importlib.util
    import marshal

    source = f"{library}/persistent_sessions.py"
    seen = os.stat(source)
    tree = ast.parse(read_file(source))
    numbers = (0, int(seen.st_mtime), seen.st_size)
    head = b"".join((n & 0xFFFFFFFF).to_bytes(4, "little") for n in numbers)
    for verb, command in PARTS.items():
        path = f"{library}/parts/{verb}/persistent_sessions.py"
        cache = importlib.util.cache_from_source(path)
        os.makedirs(os.path.dirname(cache), exist_ok=True)
        sweep(*os.path.split(cache))
        part = ast.Module(reach(tree, command), type_ignores=[])
        code = marshal.dumps(compile(part, path, "exec", dont_inherit=True))
        write_atomic(cache, importlib.util.MAGIC_NUMBER + head + code, 0o644)
        if not os.path.islink(path):
            os.symlink("../../persistent_sessions.py", path)


def compile_installed(library: str) -> None:
    """Have the interpreter that will run what is installed compile it; a matter of speed only."""
    code = (
        "import sys,py_compile;sys.path.append(sys.argv[1]);import persistent_sessions as m;"
        "[py_compile.compile(f, quiet=1) for f in sys.argv[2:]];"
        "m.compile_parts(sys.argv[1])"
    )
    modules = [f"{library}/{m}" for m in ("persistent_sessions.py", "task_adopt.py")]
    run([python(), "-IS", "-c", code, library, *filter(os.path.exists, modules)], check=False)


def install_files(paths: Paths, done: list[str]) -> None:
    """Copy the programs and units of a checkout, and make the door they are imported through."""
    source = os.path.dirname(os.path.realpath(__file__))
    library = f"{paths.home}/.local/lib/{PROG}"
    os.makedirs(library, exist_ok=True)
    for module, program in (("persistent_sessions.py", PROG), ("task_adopt.py", "task-adopt")):
        target = f"{paths.home}/.local/bin/{program}"
        if os.path.isfile(f"{source}/units/{UNIT}") and os.path.isfile(f"{source}/{module}"):
            put(target, read_file(f"{source}/{module}"), 0o755, done)
        link = f"{library}/{module}"
        if os.path.isfile(target) and not os.path.islink(link):
            os.symlink(f"../../bin/{program}", link)
            done.append(link)
    for unit in (UNIT, TIMER):
        if os.path.isfile(f"{source}/units/{unit}"):
            text = read_file(f"{source}/units/{unit}").replace(USUAL_PYTHON, python())
            put(f"{unit_folder(paths)}/{unit}", text, 0o644, done)
    compile_installed(library)
    if python() != USUAL_PYTHON:
        why = f"there is no {USUAL_PYTHON}, which the first line of the programs names"
        raise Failure(why, hint=f"{python()} {paths.home}/.local/bin/{PROG} list")


def install_environment(paths: Paths, config: Config, done: list[str]) -> None:
    """Record in the unit's drop-in what it cannot know: PATH, claude, tmux socket, folders."""
    path = f"{unit_folder(paths)}/{UNIT}.d/environment.conf"
    restore_locale()
    env = choose_kept(os.environ)
    try:
        known = parse_dropin(read_file(path))
    except FileNotFoundError:
        known = {}
    try:
        env["PS_CLAUDE"] = find_claude(paths, config)[0]
    except Failure as e:
        if not os.access(known.get("PS_CLAUDE", ""), os.X_OK):
            known.pop("PS_CLAUDE", None)
            tell(f"{e}; `{PROG} demo` shows the program without one", 4)
    here = env["PATH"].split(":") if env.get("PATH") else []
    earlier = [f for f in known.get("PATH", "").split(":") if os.path.isdir(f)]
    env["PATH"] = ":".join(dict.fromkeys([*here, *earlier]))
    kept = sorted(known.keys() - env.keys())
    if kept:
        tell(f"kept for the unit, although this shell does not set it: {', '.join(kept)} ({path})")
    put(path, format_dropin({**known, **env}), 0o600, done)


def rc_files(paths: Paths) -> list[str]:
    """Return the shells' rc files that get the claude function."""
    zsh = f"{os.environ.get('ZDOTDIR') or paths.home}/.zshrc"
    wanted = os.path.exists(zsh) or os.path.basename(os.environ.get("SHELL", "")) == "zsh"
    return [f"{paths.home}/.bashrc", *([zsh] if wanted else [])]


def edit_rc(path: str, block: str, done: list[str]) -> None:
    """Put our block into an rc file, or take it out.  Raises Failure with the file unchanged."""
    try:
        text = read_file(path, 1 << 24)
    except FileNotFoundError:
        if not block:
            return
        text = ""
    except OSError as e:
        raise Failure(f"{path}: {e.strerror}") from None
    try:
        twins = os.stat(path).st_nlink > 1 if os.path.exists(path) else False
        put(path, set_block(text, block), 0o644, done)
    except Failure as e:
        raise Failure(f"{path}: {e}") from None
    if twins and path in done:
        tell(f"{path} had another name (a hard link), which keeps the old text", 4)


def read_stale_ids(paths: Paths, world: World) -> tuple[str, ...]:
    """Return the .id files that name no session, live, declared, opened or ended.

    Call it under the lock: what was opened since the world was read is in the registry.
    """
    kinds = {n[:-3] for n in os.listdir(paths.state) if n.endswith(".id") and not n.startswith(".")}
    known = {s.name for s in (*world.specs, *world.left, *read_registry(paths)[0])}
    known |= {p.session for p in world.panes}
    retired = {n[:-8] for n in os.listdir(paths.state) if n.endswith(".retired")}
    return stale_ids(kinds, known | retired)


def migrate_ids(start_: Start, world: World) -> None:
    """Move .id files that name no session to the attic."""
    paths = start_.paths
    for name in read_stale_ids(paths, world):
        to_attic(paths, name)
        tell(f"{name}.id names no session; moved to the attic")


def enable_units() -> None:
    """Have the user manager load and start our timer, and the unit at boot.  Raises Failure."""
    run(["systemctl", "--user", "daemon-reload"])
    run(["systemctl", "--user", "--quiet", "enable", UNIT, TIMER])
    run(["systemctl", "--user", "start", TIMER])


def enable_linger() -> None:
    """See that the user's manager starts at boot without a login.  Raises Failure."""
    user = user_name()
    if os.path.exists(f"/var/lib/systemd/linger/{user}"):
        return
    done = run(["loginctl", "enable-linger", user], check=False)
    if done.status or not os.path.exists(f"/var/lib/systemd/linger/{user}"):
        why = " ".join(done.stderr.split()) or "it stays off"
        raise Failure(f"linger: {why}", hint=f"sudo loginctl enable-linger {user}")


def adopt_tool(paths: Paths, verb: str) -> None:
    """Have task-adopt put its hook into Claude's settings, or take it out.  Raises Failure."""
    program = f"{paths.home}/.local/bin/task-adopt"
    if os.path.exists(program):
        run([python(), "-IS", program, verb])


def attempt(step: str, act: Callable[..., object], failed: list[str], *args: object) -> None:
    """Do one step of the installation; a failure is named and does not stop the others."""
    try:
        act(*args)
    except Failure as e:
        failed.append(step)
        report(Failure(f"install: {step}: {e}", hint=e.hint))
    except OSError as e:
        failed.append(step)
        report(Failure(f"install: {step}: {e.filename or ''}: {e.strerror}"))


def trust_set(start_: Start, done: list[str]) -> None:
    """Trust every folder of the restore set that exists and may be trusted.  Raises Failure."""
    home = os.path.realpath(start_.paths.home)
    for spec in start_.specs:
        wanted = is_trusted_unasked(start_.config, spec) and os.path.isdir(spec.directory)
        if wanted and trust_unasked(start_.paths, spec):
            done.append(f"trust of {spec.directory}")
            if spec.directory == home:
                tell("trusting the home directory also covers every folder below it", 4)


def install_shim(paths: Paths, name: str, done: list[str]) -> None:
    """Make a runtime's shim: a link of its name that leads to a starter of ours."""
    if classify_name(name):
        raise Failure(classify_name(name))
    library = f"{paths.home}/.local/lib/{PROG}"
    put(f"{library}/{PROG}-shim", SHIM, 0o755, done)
    os.makedirs(f"{library}/shims", exist_ok=True)
    link = f"{library}/shims/{name}"
    if not os.path.islink(link):
        os.symlink(f"../{PROG}-shim", link)
        done.append(link)
    found = os.environ.get("PATH", "").split(":")
    first = next((p for p in found if os.access(f"{p}/{name}", os.X_OK)), "")
    if os.path.realpath(first) != os.path.realpath(f"{library}/shims"):
        tell(f'for the shim of {name}: export PATH="$HOME/.local/lib/{PROG}/shims:$PATH"')


def cmd_install(shims: Sequence[str] = ()) -> int:
    """Set everything up: files, units with their environment, shell function, trust, linger."""
    os.umask(os.umask(0o022) | 0o022)  # what the timer runs is nobody else's to write
    start_ = begin()
    paths = start_.paths
    done: list[str] = []
    failed: list[str] = []
    attempt("files", lambda: install_files(paths, done), failed)
    attempt("environment", lambda: install_environment(paths, start_.config, done), failed)
    for rc in rc_files(paths):
        attempt(f"shell function in {rc}", edit_rc, failed, rc, SHELL_FUNCTION, done)
    for name in shims:
        attempt(f"shim {name}", install_shim, failed, paths, name, done)
    attempt("trust", lambda: trust_set(start_, done), failed)

    def migrate() -> None:
        if not start_.sound:
            raise Failure("not while manifest, registry or config.json cannot be read whole")
        world = take_world(start_, records=True)

        def act() -> None:
            tidy(start_, world)
            migrate_ids(start_, world)

        with_lock(paths, act)

    attempt("migration", migrate, failed)
    attempt("task hook", lambda: adopt_tool(paths, "install"), failed)
    attempt("units", enable_units, failed)
    attempt("linger", enable_linger, failed)
    for path in done:
        tell(f"installed {path}")
    if not done:
        tell("everything is installed already; nothing changed")
    if failed:
        tell(f"not done: {', '.join(failed)}; without them sessions do not come back at boot", 4)
    return TROUBLE if failed or not start_.sound else OK


def cmd_uninstall() -> int:
    """Remove what install wrote; state, conversations and running sessions stay."""
    import shutil

    paths = Paths.from_env(os.environ)
    failed: list[str] = []
    done: list[str] = []
    if os.path.exists(f"{unit_folder(paths)}/{UNIT}"):
        attempt(
            "units",
            lambda: run(["systemctl", "--user", "--quiet", "disable", "--now", TIMER]),
            failed,
        )
        attempt("units", lambda: run(["systemctl", "--user", "--quiet", "disable", UNIT]), failed)
    for rc in (f"{paths.home}/.bashrc", f"{os.environ.get('ZDOTDIR') or paths.home}/.zshrc"):
        attempt(f"shell function in {rc}", edit_rc, failed, rc, "", done)
    attempt("task hook", lambda: adopt_tool(paths, "uninstall"), failed)
    units, library = unit_folder(paths), f"{paths.home}/.local/lib/{PROG}"
    gone = [f"{units}/{UNIT}.d/environment.conf", f"{units}/{UNIT}", f"{units}/{TIMER}"]
    gone += [f"{library}/persistent_sessions.py", f"{library}/task_adopt.py"]
    gone += [f"{paths.home}/.local/bin/{PROG}", f"{paths.home}/.local/bin/task-adopt"]
    if "task hook" in failed:
        gone = [p for p in gone if "adopt" not in os.path.basename(p)]  # it takes its hook out
    shims = f"{library}/shims"
    gone += [f"{library}/{PROG}-shim"]
    gone += [f"{shims}/{n}" for n in (os.listdir(shims) if os.path.isdir(shims) else [])]

    def take(path: str, by: Callable[[str], object]) -> None:
        by(path)
        tell(f"removed {path}")

    for path in gone:
        if os.path.lexists(path):
            attempt("files", take, failed, path, os.unlink)
    for folder in (f"{library}/__pycache__", f"{library}/parts"):
        if os.path.isdir(folder):
            attempt("files", take, failed, folder, shutil.rmtree)
    for folder in (f"{units}/{UNIT}.d", shims, library):
        if os.path.isdir(folder) and not os.listdir(folder):
            attempt("files", os.rmdir, failed, folder)
    tell(f"kept: {paths.state}, {paths.config} and every conversation")
    return TROUBLE if failed else OK


# ---- Demo -----------------------------------------------------------------


def fire(settings: str, event: str, payload: Mapping[str, object]) -> None:
    """Run the hooks of a settings file as the agent would; part of the demo's agent."""
    import json

    hooks = json.loads(read_file(settings))["hooks"].get(event, [])
    text = json.dumps({**payload, "hook_event_name": event})
    for entry in hooks:
        for hook in entry["hooks"]:
            env = {**os.environ, "CLAUDE_PID": str(os.getpid())}
            run(["sh", "-c", hook["command"]], check=False, input=text, env=env)


def cmd_agent(argv: Sequence[str]) -> int:
    """Play a claude for `demo`: a conversation on disk, the two hooks, /exit; nothing else."""
    import json

    home = claude_home(os.environ)
    settings = argv[argv.index("--settings") + 1]
    resumed = argv[argv.index("--resume") + 1] if "--resume" in argv else ""
    raw = os.urandom(16).hex()
    fresh = "-".join((raw[:8], raw[8:12], "4" + raw[13:16], "8" + raw[17:20], raw[20:]))
    me, session = os.getpid(), resumed or fresh
    os.makedirs(f"{home}/sessions", exist_ok=True)
    os.makedirs(f"{home}/projects/demo", exist_ok=True)
    transcript = f"{home}/projects/demo/{session}.jsonl"
    record = f"{home}/sessions/{me}.json"
    known = {"sessionId": session, "pid": me, "procStart": process_start(me), "cwd": os.getcwd()}
    with open(record, "w", encoding="utf-8") as f:
        json.dump({**known, "kind": "interactive", "entrypoint": "cli"}, f)
    base = {"session_id": session, "cwd": os.getcwd(), "transcript_path": transcript}
    fire(settings, "SessionStart", {**base, "source": "resume" if resumed else "startup"})
    print(f"demo agent: {'resumed' if resumed else 'new'} conversation {session}", flush=True)
    for line in sys.stdin:
        if line.strip() == "/exit":
            break
        with open(transcript, "a", encoding="utf-8") as f:
            f.write(
                json.dumps({"type": "user", "message": {"content": line.strip()}, **known}) + "\n"
            )
        with open(transcript, encoding="utf-8") as f:
            print(f"I know {sum(1 for _ in f)} thing(s) now", flush=True)
    os.unlink(record)
    fire(settings, "SessionEnd", {**base, "reason": "prompt_input_exit"})
    return OK


class Stage(NamedTuple):
    """The private world that the demo plays in."""

    folder: str
    env: Mapping[str, str]

    def program(self, *args: str, folder: str = "") -> Done:
        """Run this program in the demo's world, in one of its folders."""
        code = "import os,sys;os.chdir(sys.argv[1]);os.execv(sys.argv[2],sys.argv[2:])"
        inner = [sys.executable, "-IS", os.path.abspath(__file__), *args]
        argv = [sys.executable, "-IS", "-c", code, folder or self.folder, *inner]
        done = run(argv, env=self.env, check=False)
        if done.status not in (OK, TROUBLE) or "Traceback" in done.stderr:
            raise ToolError(f"demo: {' '.join(args)}", done.status, done.stderr)
        return done

    def show(self, *args: str) -> Done:
        """Run a command and print it with what it says, indented."""
        done = self.program(*args)
        print(f"$ {PROG} {' '.join(args)}")
        for line in (done.stdout + done.stderr).splitlines():
            print(f"    {line.replace(self.folder, '~')}")
        return done

    def states(self) -> dict[str, tuple[str, str, int]]:
        """Return each session's state, conversation and pid, as list --json has them."""
        rows = parse_object(self.program("list", "--json").stdout)["sessions"]
        assert isinstance(rows, list)
        return {r["name"]: (r["state"], r["id"] or "", r["pid"] or 0) for r in rows}


def expect(what: str, good: bool) -> None:
    """Print a promise that held.  Raises Failure when it did not."""
    if not good:
        raise Failure(f"demo: the promise does not hold: {what}", hint=f"{PROG} doctor")
    print(f"  ok: {what}")


def wait_until(what: str, good: Callable[[], bool], limit: float = 8.0) -> None:
    """Wait for the demo's processes to get somewhere.  Raises Failure when they do not."""
    deadline = time.monotonic() + limit
    while not good():
        if time.monotonic() > deadline:
            raise Failure(f"demo: {what} did not happen within {limit:g} s")
        time.sleep(0.03)


def make_stage(folder: str) -> Stage:
    """Build the demo's home, its agent and its environment below a new folder."""
    import json
    import shlex

    names = ("home", "run", "tmux", "home/alpha", "home/beta", "home/gamma", "home/.config")
    for name in (*names, f"home/.config/{PROG}"):
        os.mkdir(f"{folder}/{name}", 0o700)
    agent = f"{folder}/home/claude"
    line = shlex.join([sys.executable, "-IS", os.path.abspath(__file__), "_agent"])
    write_atomic(agent, f'#!/bin/sh\nexec {line} "$@"\n', 0o700)
    config = {"claude": {"path": agent}, "network": {"wait_s": 0}}
    write_atomic(f"{folder}/home/.config/{PROG}/config.json", json.dumps(config))
    env = {"HOME": f"{folder}/home", "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    env.update(TMUX_TMPDIR=f"{folder}/tmux", XDG_RUNTIME_DIR=f"{folder}/run", TERM="xterm")
    return Stage(folder, env)


def play(stage: Stage, tmux: Tmux) -> None:
    """Tell the whole story once; every step is checked."""
    home = f"{stage.folder}/home"
    print("\n1. Three sessions, each opened by `claude` in a folder of its own.")
    for name in ("alpha", "beta", "gamma"):
        stage.program("open", folder=f"{home}/{name}")
        tmux("send-keys", "-t", f"={name}:", f"remember {name}", "Enter")
        shown = f"={name}:"
        wait_until(
            f"the agent's answer in {name}",
            lambda shown=shown: (
                "I know 1"
                in tmux(  # type: ignore[misc]
                    "capture-pane", "-p", "-t", shown
                ).stdout
            ),
        )
    stage.show("list")
    first = stage.states()
    expect(
        "all three are live",
        all(state == LIVE for state, _, _ in first.values()) and len(first) == 3,
    )
    print("\n2. One is killed (kill -9), one is ended at its prompt (/exit).")
    run_ = parse_supervisor(read_file(f"{home}/.local/state/{PROG}/alpha.run"))
    assert run_ is not None
    os.kill(run_.claude, signal.SIGKILL)
    tmux("send-keys", "-t", "=beta:", "/exit", "Enter")
    wait_until(
        "the end of both", lambda: LIVE not in {stage.states()[n][0] for n in ("alpha", "beta")}
    )
    stage.show("list")
    stage.show("start")
    second = stage.states()
    expect(
        "the killed one is back in its conversation",
        second["alpha"][:2] == (LIVE, first["alpha"][1]),
    )
    expect("the ended one stays ended", second["beta"][0] == RETIRED)
    expect("the third was left alone", second["gamma"] == first["gamma"])
    print("\n3. The whole tmux server goes: tmux kill-server.")
    tmux("kill-server")
    wait_until("the end of all", lambda: LIVE not in {s for s, _, _ in stage.states().values()})
    stage.show("list")
    stage.show("start")
    third = stage.states()
    for name in ("alpha", "gamma"):
        expect(f"{name} is back in its conversation", third[name][:2] == (LIVE, first[name][1]))
    expect("beta stays ended", third["beta"][0] == RETIRED)


def processes_of(folder: str) -> set[int]:
    """Return the processes of the demo's world: their home is below its folder."""
    found = set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if f"\0HOME={folder}/" in f"\0{read_file(f'/proc/{pid}/environ', 1 << 20)}":
                found.add(pid)
        except OSError:
            continue  # another user's, or gone
    return found - {os.getpid()}


def cmd_demo() -> int:
    """Play the whole story in a private home and tmux with a stand-in agent, and clean up."""
    import shutil
    import tempfile

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # cleans up, as after Ctrl-C
    folder = tempfile.mkdtemp(prefix="ps-demo.", dir="/tmp")
    tmux = Tmux(f"{folder}/tmux/tmux-{os.getuid()}/default")
    print("A private home, tmux and state; the agent is a stand-in; nothing of yours is touched.")
    try:
        play(make_stage(folder), tmux)
        print("\nEvery promise held.")
    finally:
        until = time.monotonic() + 20
        while processes_of(folder) and time.monotonic() < until:
            tmux("kill-server", check=False)  # what was being launched may come up late
            for each in processes_of(folder):
                wait_for_process(each, 1.0)
        shutil.rmtree(folder, ignore_errors=True)
    return OK


# ---- For people -----------------------------------------------------------

FILED = "id run event exit health retired screen".split()  # state files that bear a session's name
LITTLE_DISK = 50 << 20  # bytes
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ask_version(*argv: str) -> str:
    """Return the first line that a program prints about its version, "" for a missing one."""
    try:
        return run(argv, check=False, timeout=15).stdout.partition("\n")[0].strip()
    except Failure:
        return ""


def check_tools(start_: Start) -> list[Check]:
    """Check the versions of what everything else stands on."""
    apt = "sudo apt-get install"
    git_ = classify_tool("git", ask_version("git", "--version"), (2, 0), f"{apt} git")
    if not start_.config.clone and git_.state == FAIL:
        git_ = git_._replace(state=WARN)
    python_ = ask_version(USUAL_PYTHON, "-IS", "--version")
    return [
        classify_tool("python", python_, (3, 9), f"{apt} python3"),
        classify_tool("tmux", ask_version("tmux", "-V"), (3, 2), f"{apt} tmux"),
        git_,
    ]


def check_manager() -> list[Check]:
    """Check what brings sessions back at boot: user manager, linger, unit and timer."""
    user = user_name()
    if not os.path.isdir("/run/systemd/system"):
        mend = f"(crontab -l; echo '@reboot $HOME/.local/bin/{PROG} start') | crontab -"
        return [Check("manager", WARN, "no systemd here: nothing comes back at boot", mend)]
    checks = [Check("linger", GOOD, "on")]
    if not os.path.exists(f"/var/lib/systemd/linger/{user}"):
        text = "off: sessions end at logout and do not come back at boot"
        checks = [Check("linger", FAIL, text, f"sudo loginctl enable-linger {user}")]
    state = manager_state("--user")
    if state in ("", "offline", "stopping"):
        mend = f"sudo systemctl start user@{os.getuid()}.service"
        return [*checks, Check("manager", FAIL, f"no answer {state}".strip(), mend)]
    keys = "UnitFileState,ActiveState,Result,InactiveEnterTimestamp,NextElapseUSecMonotonic"
    shown = run(["systemctl", "--user", "show", f"--property={keys}", UNIT, TIMER]).stdout
    service, timer = (parse_pairs(part) for part in shown.strip().split("\n\n"))
    known = parse_pairs(run(["systemctl", "--user", "show-environment"]).stdout)
    lacking = [name for name in choose_credentials(os.environ) if name not in known]
    checks += [Check("manager", GOOD, state), *classify_units(service, timer, time.monotonic())]
    if lacking:
        mend = f"write {lacking[0]}=... into ~/.config/environment.d/claude.conf"
        text = f"known to this shell only, so sessions lack it after a boot: {', '.join(lacking)}"
        checks.append(Check("environment", WARN, text, mend))
    return checks


def check_claude(start_: Start) -> list[Check]:
    """Check the real claude, and whether it would take the arguments it is to be given."""
    try:
        binary, news = find_claude(start_.paths, start_.config)
    except Failure as e:
        return [Check("claude", FAIL, str(e), "npm install -g @anthropic-ai/claude-code")]
    version = ask_version(binary, "--version")
    text = news or f"{binary}: {version or 'it does not tell its version'}"
    checks = [Check("claude", WARN if news or not version else GOOD, text, f"{PROG} install")]
    declared = any(spec.declared for spec in start_.specs)
    given = {*start_.config.open_args, *(w for spec in start_.specs for w in spec.args)}
    given.update(start_.config.start_args if declared else ())
    flag = "--dangerously-skip-permissions"
    if os.getuid() == 0 and flag in given and os.environ.get("IS_SANDBOX") != "1":
        mend = 'set "claude": {"start_args": []} in config.json'
        checks.append(Check("root", FAIL, f"claude refuses {flag} to root", mend))
    return checks


def read_claude_file(path: str) -> dict[str, object]:
    """Return a JSON object that Claude keeps, {} where it is missing.  Raises Failure."""
    try:
        return parse_object(read_file(path, 1 << 28))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise Failure(f"{path}: {e}", hint=f"python3 -m json.tool {path}") from None


def read_signed_in(paths: Paths) -> bool:
    """Tell whether Claude keeps a claude.ai account for this user.  Raises Failure."""
    kept = read_claude_file(f"{paths.claude}/.credentials.json").get("claudeAiOauth")
    return isinstance(kept or read_claude_file(paths.trust).get("oauthAccount"), dict)


def read_ages(claude: str, heads: Mapping[str, str], now: float) -> dict[str, float]:
    """Return how many days ago the conversation of each session was last written."""
    seen: dict[str, float] = {}
    root = f"{claude}/projects"
    for folder in os.listdir(root) if os.path.isdir(root) else ():
        for name, session_id in heads.items():
            try:
                written = os.stat(f"{root}/{folder}/{session_id}.jsonl").st_mtime
            except OSError:
                continue
            seen[name] = max(written, seen.get(name, 0.0))
    return {name: (now - written) / 86400 for name, written in seen.items()}


def check_account(start_: Start, world: World) -> list[Check]:
    """Check what Claude's own settings mean for sessions: sign-in, task tools, retention."""
    paths = start_.paths
    settings = read_claude_file(f"{paths.claude}/settings.json")
    own = settings.get("env")
    named = own.items() if isinstance(own, dict) else ()
    env = {**os.environ, **{k: str(v) for k, v in named if isinstance(v, (str, int, float))}}
    account = classify_sign_in(env, bool(settings.get("apiKeyHelper")), read_signed_in(paths))
    if not start_.config.remote_control:
        account = Check("sign-in", GOOD, "Remote Control is off in config.json")
    tools = Check("task tools", GOOD, "on")
    if env.get(CONSENT_ENV) not in ("1", "true"):
        text = "on in persistent sessions only, off in any other claude"
        tools = Check("task tools", WARN, text, "task-adopt install")
    days = settings.get("cleanupPeriodDays")
    sane = isinstance(days, (int, float)) and 0 <= days < 1e6
    period = float(str(days)) if sane else 30.0  # Claude's default
    heads = {s.name: f.ids[0] for s in world.specs for f in [world.facts[s.name]] if f.ids}
    return [account, tools, classify_retention(period, read_ages(paths.claude, heads, world.now))]


def classify_rc(text: str, path: str) -> Check:
    """Return whether a shell's rc file holds our function, and nothing after it that hides it."""
    name = f"shell function in {path}"
    mend = f"{PROG} install"
    try:
        if set_block(text, SHELL_FUNCTION) != text:
            known = BEGIN in text
            return Check(name, WARN, "of another version" if known else "it is missing", mend)
    except Failure as e:
        return Check(name, FAIL, str(e), f"remove the lines between {BEGIN} and {END}")
    for line in text.partition(END)[2].splitlines():
        words = line.strip().replace("(", " ").split()
        if words[:2] == ["function", "claude"] or words[:1] == ["claude"] or (
            words[:1] == ["alias"] and any(w.startswith("claude=") for w in words)
        ):  # fmt: skip
            return Check(name, WARN, f"hidden by a later line: {line.strip()}", f"edit {path}")
    return Check(name, GOOD, "in place")


def check_shell(paths: Paths) -> list[Check]:
    """Check the claude function in the rc files that install writes."""
    checks = []
    for path in rc_files(paths):
        try:
            checks.append(classify_rc(read_file(path, 1 << 24), path))
        except FileNotFoundError:
            checks.append(classify_rc("", path))
    return checks


def check_folders(start_: Start) -> list[Check]:
    """Check that each folder of the restore set exists and is trusted."""
    paths, checks = start_.paths, []
    value = read_claude_file(paths.trust).get("projects")
    projects: Mapping[str, object] = value if isinstance(value, dict) else {}
    for spec in start_.specs:
        name = f"folder of {spec.name}"
        if not os.path.isdir(spec.directory):
            mend = f"mkdir -p {spec.directory}  (or: {PROG} retire {spec.name})"
            checks.append(Check(name, FAIL, f"{spec.directory} does not exist", mend))
        elif not choose_trusted(spec.directory, projects):
            mend = f"{PROG} trust {spec.name}"
            checks.append(Check(name, WARN, f"{spec.directory} is not trusted yet", mend))
    home = os.path.realpath(paths.home)
    if choose_trusted(home, projects):
        mend = f"set hasTrustDialogAccepted of {home} to false in {paths.trust}"
        text = f"{home} is trusted, and with it every folder below: Claude asks about none of them"
        checks.append(Check("trust", WARN, text, mend))
    return checks or [Check("folders", GOOD, f"{len(start_.specs)} exist and are trusted")]


def check_manifest(start_: Start) -> list[Check]:
    """Check that the manifest can be read, and how old what stands in for it is."""
    paths, config = start_.paths, start_.config
    if not (config.clone or config.file):
        return [Check("manifest", GOOD, "none is configured")]
    specs, complaints, broken = load_manifest(paths, config, ask_manifest(config))
    own = config.clone and os.access(config.clone, os.W_OK)
    mend = f"git -C {config.clone} fetch" if own else f"ls -ld {config.clone or config.file}"
    if broken:
        copy = f"{paths.state}/manifest.tsv"
        kept = f" of {iso(os.stat(copy).st_mtime)}" if os.path.exists(copy) else ""
        text = complaints[0].replace("the last good copy", f"the last good copy{kept}")
        return [Check("manifest", FAIL, text, mend)]
    text = f"{len(specs)} of its rows are {user_name()}'s"
    fetched = f"{config.clone}/.git/FETCH_HEAD"
    if config.clone and os.path.exists(fetched):
        text += f"; last fetched {iso(os.stat(fetched).st_mtime)}"
    bad = [Check("manifest", WARN, line, f"{PROG} manifest") for line in complaints]
    return [Check("manifest", GOOD, text), *bad]


def check_state(start_: Start) -> list[Check]:
    """Check that the state folder can be written and the configuration means something."""
    state = start_.paths.state
    disk = os.statvfs(state)
    free = disk.f_bavail * disk.f_frsize
    checks = [Check("disk", GOOD, f"{free >> 20} MiB free for {state}")]
    if free < LITTLE_DISK or (disk.f_files and not disk.f_favail):
        how = FAIL if free < 1 << 20 or not disk.f_favail else WARN
        checks = [Check("disk", how, f"only {free >> 10} KiB free for {state}", f"df -h {state}")]
    if not os.access(state, os.R_OK | os.W_OK | os.X_OK):
        checks = [Check("disk", FAIL, f"{state} cannot be written", f"ls -ld {state}")]
    _, complaints, broken = load_config(start_.paths)
    config = f"{start_.paths.config}/config.json"
    checks += [
        Check("config", FAIL if broken else WARN, line, f"python3 -m json.tool {config}")
        for line in complaints
    ]
    _, bad = read_registry(start_.paths)
    edit = f"edit {state}/registry.tsv"
    return checks + [Check("registry", WARN, line, edit) for line in bad]


def check_sessions(start_: Start, world: World) -> list[Check]:
    """Check tmux and what the plan says of each session, with the ids that are in the way."""
    decisions = plan(world)
    mend = "pkill -USR1 -u $USER tmux"
    socket = read_sockets(start_.config, live_runs(world.facts))[0]
    shown = f"panes on {socket}: {len(world.panes)}" if world.panes else "it starts when needed"
    checks = [Check("tmux server", *((FAIL, world.blind, mend) if world.blind else (GOOD, shown)))]
    bad = [d for d in decisions if d.verdict not in FINE]
    checks += [Check(f"session {d.spec.name}", FAIL, f"{d.verdict}: {d.why}", d.hint) for d in bad]
    owners: dict[str, list[str]] = {}
    for spec in world.specs:
        facts = world.facts[spec.name]
        if facts.ids and not facts.retired and not any(s.renamed == spec.name for s in world.specs):
            owners.setdefault(facts.ids[0], []).append(spec.name)
    for session_id, names in owners.items():
        if len(names) > 1:
            text = f"{' and '.join(names)} have one conversation, {session_id}"
            checks.append(Check("ids", WARN, text, f"{PROG} retire {names[-1]}"))
    stale = read_stale_ids(start_.paths, world)
    if stale:
        text = f"{', '.join(f'{name}.id' for name in stale)} names no session"
        checks.append(Check("ids", WARN, text, f"{PROG} install  (moves it to the attic)"))
    fine = f"{len(decisions) - len(bad)} of {len(decisions)} are where they should be"
    return [*checks, Check("sessions", FAIL if bad else GOOD, fine, f"{PROG} list")]


def cmd_doctor(as_json: bool = False) -> int:
    """Check each prerequisite, one line each, with the command that mends it."""
    checks: list[Check] = []
    paths = Paths.from_env(os.environ)
    start_ = Start(paths, choose_config({}), (), False)

    def examine(name: str, look: Callable[[], list[Check]]) -> None:
        try:
            checks.extend(look())
        except Failure as e:
            checks.append(Check(name, FAIL, str(e), e.hint))
        except OSError as e:
            checks.append(Check(name, FAIL, f"{e.filename}: {e.strerror}", f"ls -ld {e.filename}"))

    try:
        start_ = begin(quiet=True)
    except Failure as e:
        checks.append(Check("state", FAIL, str(e), e.hint or f"ls -l {paths.state}"))
    else:
        examine("state", lambda: check_state(start_))
    examine("tools", lambda: check_tools(start_))
    examine("manager", check_manager)
    examine("claude", lambda: check_claude(start_))
    examine("shell function", lambda: check_shell(paths))
    examine("manifest", lambda: check_manifest(start_))
    examine("folders", lambda: check_folders(start_))

    try:
        world = take_world(start_, records=True)
    except Failure as e:
        checks.append(Check("sessions", FAIL, str(e), e.hint))
    else:
        examine("claude's settings", lambda: check_account(start_, world))
        examine("sessions", lambda: check_sessions(start_, world))
    if as_json:
        import json

        rows = [dict(zip(("name", "state", "text", "mend"), check)) for check in checks]
        print(json.dumps({"version": 1, "checks": rows}, indent=1))
    else:
        print(format_checks(checks), end="")
    return TROUBLE if any(check.state == FAIL for check in checks) else OK


def read_listing(paths: Paths) -> frozenset[str]:
    """Return the names in the state folder, none where there is none.  Raises Failure."""
    try:
        return frozenset(os.listdir(paths.state))
    except FileNotFoundError:
        return frozenset()
    except OSError as e:
        raise Failure(f"{paths.state}: {e.strerror}", hint=f"ls -ld {paths.state}") from None


def read_status(paths: Paths) -> dict[str, list[str]]:
    """Return {state: sessions} from the state folder and /proc alone: no tmux, no git.

    What holds a pane is known from the last tick.
    """
    states: dict[str, list[str]] = {"live": [], "blocked": [], "resting": [], "down": []}
    listing, boot, now = read_listing(paths), boot_id(), time.time()
    rows = read_copies(paths)
    heirs = {spec.renamed for spec in rows.values()}
    for name, spec in rows.items():
        runs = [n for n in (name, spec.renamed) if f"{n}.run" in listing]
        known = [parse_supervisor(read_state(paths.of(n, "run"))) for n in runs]
        seen = [run_ for run_ in known if run_ is not None]
        live = any(supervisor_lives(run_, boot) for run_ in seen)
        held = f"{name}.health" in listing
        health = parse_health(read_state(paths.of(name, "health"))) if held else Health()
        if live:
            states["blocked" if health.notified == BLOCKED else "live"].append(name)
        elif name not in heirs and not (f"{name}.retired" in listing and is_retired(paths, name)):
            rests = choose_rest(health, seen[0] if seen else None, now)
            states["resting" if rests else "down"].append(name)
    if states["down"]:  # some may live without a supervisor of ours
        alive = {r.tmux for r in read_records(paths.claude)[0] if r.alive and r.visible}
        states["live"] += [name for name in states["down"] if name in alive]
        states["down"] = [name for name in states["down"] if name not in alive]
    return states


def cmd_status_line() -> int:
    """Print one line about all sessions, quickly enough for a status bar."""
    paths = Paths.from_env(os.environ)
    states = read_status(paths)
    _, _, broken = load_config(paths)
    print(format_status(states) + (", config.json is broken" if broken else ""))
    return TROUBLE if broken or any(states[s] for s in states if s != "live") else OK


def copy_state(one: str, other: str) -> None:
    """Give a state file a second name, or a copy where the file system has no links."""
    try:
        os.link(one, other)
    except OSError as e:
        if e.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        write_atomic(other, read_file(one))


def move_session(start_: Start, spec: Spec, new: str, socket: str, shown: str) -> None:
    """Give a session and all that is filed under it another name.  Call it under the lock.

    A copy under the new name comes first and the old one goes last, so that no moment is
    without the conversation's id.  Raises Failure or OSError with nothing moved.
    """
    paths, old = start_.paths, spec.name
    kinds = [kind for kind in FILED if os.path.exists(paths.of(old, kind))]
    made: list[str] = []
    swapped = False

    def swap(rows: dict[str, Spec], old: str = old, new: str = new) -> None:
        if old in rows:
            rows[new] = rows.pop(old)._replace(name=new)

    try:
        for kind in kinds:
            copy_state(paths.of(old, kind), paths.of(new, kind))
            made.append(kind)
        edit_registry(paths, swap)
        swapped = True
        if shown:
            Tmux(socket)("rename-session", "-t", f"={shown}", new)
    except (Failure, OSError):
        if swapped:
            edit_registry(paths, lambda rows: swap(rows, new, old))
        for kind in made:
            remove(paths.of(new, kind))
        raise
    ids = parse_ids(read_state(paths.of(old, "id")))[:1]  # a hook may have filed one meanwhile
    if ids and ids[0] not in parse_ids(read_state(paths.of(new, "id"))):
        record_id(paths, new, ids[0])
    settings = f"{paths.config}/settings.{old}.json"
    if os.path.exists(settings):
        os.rename(settings, f"{paths.config}/settings.{new}.json")
    for kind in kinds:
        remove(paths.of(old, kind))


def cmd_rename(old: str, new: str) -> int:
    """Rename a session with everything filed under it, whether it is live or not."""
    start_ = begin(quiet=True)
    world = take_world(start_, records=True)
    rows = {spec.name: spec for spec in (*world.left, *world.specs)}
    spec = rows.get(old)
    if spec is None:
        raise Failure(f"no session {old!r}", hint=f"{PROG} list")
    heir = next((s.name for s in world.specs if s.renamed == old), "")
    facts, paths = world.facts[old], start_.paths
    taken = new in rows or any(p.session == new for p in world.panes)
    taken = taken or any(os.path.exists(paths.of(new, kind)) for kind in FILED)
    why = classify_name(new) or (f"the name {new!r} is taken" if taken else "")
    if spec.declared:
        why = f"{old!r} is declared in the manifest: its name is changed there"
    elif heir:
        why = f"{old!r} lives as {heir!r}: rename that"
    elif facts.run_live and facts.run is not None and not facts.run.claude:
        why = f"{old!r} is being launched"
    why = why or world.blind
    if why:
        raise Failure(f"rename: {why}", hint=f"{PROG} list")
    verdict = next((d.verdict for d in plan(world) if d.spec.name == old), RETIRED)
    live = verdict in (LIVE, BLOCKED) or facts.run_live
    socket, shown = shown_name(spec, world) if live else ("", "")
    with_lock(paths, lambda: move_session(start_, spec, new, socket, shown))
    later = "; the phone shows the new name from its next launch on" if shown else ""
    tell(f"{old} is now {new}{later}")
    return OK


def find_agent(panes: Iterable[Pane], records: Iterable[Record]) -> tuple[int, Record | None]:
    """Return the pid of the claude in one of these panes, 0 for none, and its own record."""
    pids = {pane.pid for pane in panes if not pane.dead}
    for record in records:
        line = (record.pid, *process_parents(record.pid)) if record.alive else ()
        if record.visible and pids.intersection(line):
            return record.pid, record
    return next((pid for pid in sorted(pids) if is_agent(pid)), 0), None


def cmd_adopt_session(name: str) -> int:
    """Take a claude that runs in a tmux session into the restore set, without touching it."""
    start_ = begin(quiet=True)
    paths = start_.paths
    world = take_world(start_, records=True)
    shown = [pane for pane in world.panes if pane.session == name]
    known = {spec.name: spec for spec in (*world.left, *world.specs)}.get(name)
    if world.blind or not shown:
        raise Failure(world.blind or f"adopt: no tmux session {name!r}", hint="tmux list-sessions")
    if classify_name(name):
        hint = f"tmux rename-session -t {quote(f'={name}')} NAME"
        raise Failure(f"adopt: {classify_name(name)}", hint=hint)
    pid, record = find_agent(shown, world.records)
    if not pid:
        hint = f"tmux attach -t '={name}'"
        raise Failure(f"adopt: no claude runs in session {name!r}", hint=hint)
    if known is not None and world.facts[name].run_live:
        tell(f"{name}: it is a persistent session already")
        return OK
    try:
        words = read_file(f"/proc/{pid}/cmdline").split("\0")
        directory = os.path.realpath(f"/proc/{pid}/cwd")
    except OSError as e:
        raise Failure(f"adopt: it ended meanwhile: {e.strerror}") from None
    if record is not None and record.directory:
        directory = os.path.realpath(record.directory)
    if known is not None and known.directory != directory:
        why = f"the name {name!r} is taken by {known.directory}"
        raise Failure(f"adopt: {why}", hint=f"tmux rename-session -t '={name}' {name}-2")
    session_id = record.session_id if record and is_session_id(record.session_id) else ""

    def act() -> None:
        if known is None or not known.declared:
            register(paths, Spec(name, directory, args=choose_adopted_args(words)))
        remove(paths.of(name, "retired"))
        remove(paths.of(name, "run"))  # an earlier supervisor's: this claude has none
        if session_id:
            record_id(paths, name, session_id)

    with_lock(paths, act)
    tell(f"{name}: adopted in {directory} with conversation {session_id or '(none yet)'}")
    return OK


def cmd_complete(words: Sequence[str], verbs: Sequence[str]) -> int:
    """Print what may follow `words`, for the shells' completion."""
    paths = Paths.from_env(os.environ)
    ended = (n[:-8] for n in read_listing(paths) if n.endswith(".retired"))
    names = {*read_copies(paths), *ended}
    for word in choose_completions(words, verbs, names, read_ledger(ledger_folder(paths))):
        if not classify_name(word):  # a shell expands these once more
            print(word)
    return OK


def become(user: str, argv: Sequence[str]) -> None:
    """Carry out a command as another user and never return; return when that is who we are.

    Nothing of this environment goes along.  Raises Failure.
    """
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except (KeyError, ValueError):
        raise Failure(f"no user {user!r}", hint="getent passwd", status=USAGE) from None
    if entry.pw_uid == os.getuid():
        return
    program = [f"{entry.pw_dir}/.local/bin/{PROG}"]
    prefix = ["sudo", "-n", "-H", "-u", user, "--"]
    if os.getuid() == 0:
        prefix = ["runuser", "-u", user, "--"]
        if not os.access(program[0], os.X_OK):
            program = [python(), "-IS", os.path.abspath(__file__)]
    os.chdir("/")
    try:
        os.execvpe(prefix[0], [*prefix, *program, "_as", *argv], {"PATH": SYSTEM_PATH})
    except OSError as e:
        raise Failure(f"{prefix[0]}: {e.strerror}", hint=f"sudo apt-get install {prefix[0]}") from e


def enter_account(argv: Sequence[str]) -> None:
    """Take the environment of this user's own manager, or one made from scratch.

    With a manager the command runs as a unit of its own and this never returns.
    """
    import pwd

    entry = pwd.getpwuid(os.getuid())
    path = f"{entry.pw_dir}/.local/bin:{SYSTEM_PATH}"
    os.environ.clear()
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name, PATH=path)
    os.environ["SHELL"] = entry.pw_shell or "/bin/sh"
    runtime = runtime_folder(os.environ)
    if runtime:
        os.environ["XDG_RUNTIME_DIR"] = runtime
    if runtime and manager_state("--user") not in ("", "offline", "stopping"):
        options = "--user --pipe --wait --collect --quiet --property=KillMode=process --"
        words = [word.replace("$", "$$") for word in own_argv("_in", *argv)]
        os.execvp("systemd-run", ["systemd-run", *options.split(), *words])


def enter_unit(paths: Paths) -> None:
    """Add what `install` recorded for the unit to this environment."""
    try:
        text = read_file(f"{unit_folder(paths)}/{UNIT}.d/environment.conf")
    except OSError:
        return  # not installed: the account's own environment is all there is
    os.environ.update(parse_dropin(text))


# ---- Command line ---------------------------------------------------------


TARGET: tuple[str, dict[str, object]] = (
    "name",
    {"help": "a session, a ledger id or its beginning"},
)
MAYBE: tuple[str, dict[str, object]] = (
    "name",
    {"nargs": "?", "default": "", "help": "a session, a ledger id or its beginning"},
)
JSON: tuple[str, dict[str, object]] = ("--json", {"action": "store_true", "help": "for programs"})

USER: tuple[str, dict[str, object]] = (
    "--user",
    {"metavar": "USER", "help": "as another user, with that user's environment"},
)

# Every command: what it is for, what carries it out, its arguments as argparse takes them.
COMMANDS: Sequence[tuple[str, str, Callable[..., int], Sequence[tuple[str, dict[str, object]]]]] = (
    (
        "open",
        "start or re-attach the session of this folder",
        lambda a: cmd_open(a.name, a.resume, a.new),
        (
            ("name", {"nargs": "?", "default": "", "help": "a session; with --new its name"}),
            ("--resume", {"nargs": "?", "const": "", "metavar": "ID", "help": "the old one, ID"}),
            ("--new", {"action": "store_true", "help": "a second session in the same folder"}),
        ),
    ),
    (
        "start",
        "bring back every session that is not there",
        lambda a: cmd_start(a.names, a.dry_run),
        (
            ("names", {"nargs": "*", "metavar": "NAME", "help": "only these, ended ones too"}),
            ("--dry-run", {"action": "store_true", "help": "print the plan, change nothing"}),
            USER,
        ),
    ),
    ("list", "show the sessions and their state", lambda a: cmd_list(a.json), (JSON, USER)),
    ("status", "say in one line whether all is well", lambda a: cmd_status_line(), (USER,)),
    ("doctor", "check what sessions need, with the command that mends it",
     lambda a: cmd_doctor(a.json), (JSON, USER)),
    ("attach", "show a session on this terminal", lambda a: cmd_attach(a.name), (MAYBE,)),
    ("capture", "print the screen of a session", lambda a: cmd_capture(a.name), (TARGET, USER)),
    ("logs", "print how a session ended, and its screen",
     lambda a: cmd_logs(a.name), (TARGET, USER)),
    ("stop", "end a session for good, or a launch", lambda a: cmd_stop(a.name), (TARGET, USER)),
    ("retire", "mark a session as ended on purpose", lambda a: cmd_retire(a.name), (TARGET, USER)),
    ("trust", "answer a session's consent prompts", lambda a: cmd_trust(a.name), (TARGET, USER)),
    ("rename", "rename a session and all that is filed under it",
     lambda a: cmd_rename(a.name, a.new), (TARGET, ("new", {}), USER)),
    ("adopt", "take a claude in a tmux session into the restore set, in place",
     lambda a: cmd_adopt_session(a.name), (("name", {"help": "a tmux session"}), USER)),
    ("manifest", "print the manifest as the unit reads it", lambda a: cmd_manifest(), (USER,)),
    (
        "host",
        "run a command where it can be watched: host -- COMMAND",
        lambda a: OK,
        (
            ("--name", {"help": "what to call it"}),
            ("--stdio", {"choices": ["pane"], "help": "give it the terminal for all three"}),
        ),
    ),
    (
        "install",
        "set up units, shell function, trust",
        lambda a: cmd_install(a.shim),
        (
            ("--shim", {"action": "append", "default": [], "metavar": "PROGRAM",
                        "help": "host every launch of it"}),
        ),
    ),
    ("uninstall", "remove what install wrote, nothing else", lambda a: cmd_uninstall(), ()),
    ("demo", "see it work in a private world, in seconds", lambda a: cmd_demo(), ()),
    ("run", "supervise one session (what a pane runs): run NAME [ID]", lambda a: OK, ()),
    ("hook", "serve Claude's SessionStart and SessionEnd hooks", lambda a: OK, ()),
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of everything that is not started often."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            self.exit(USAGE, f"{PROG}: {plain(message)}\n{PROG}: hint: {self.prog} --help\n")

    about = (__doc__ or "").split("\n\n")[0]
    parser = Parser(prog=PROG, allow_abbrev=False, description=about)
    parser.add_argument("--version", action="version", version=f"{PROG} {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, words, act, arguments in COMMANDS:
        sub = commands.add_parser(name, help=words, description=words, allow_abbrev=False)
        sub.set_defaults(act=act)
        for flag, how in arguments:
            sub.add_argument(flag, **how)  # type: ignore[arg-type]
    return parser


def ready_output() -> None:
    """See that what this process starts inherits nothing odd, and that it can print any name."""
    close_strays()
    if sys.stdout is None:  # who prints is to fail like everybody else who does
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    # A locale may know fewer characters than a name holds.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def dispatch(part: str, argv: Sequence[str], runtime: str = "") -> int:
    """Run the command that `argv` names, with the parser where it is no `part`; see PARTS.

    Of the commands named here a compiled part holds its own alone.
    """
    verb, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if part == "host":
        return cmd_host(list(argv), runtime) if runtime else cmd_host(rest)
    if part == "hook":
        return cmd_hook()
    if part == "run":
        return cmd_run(rest)
    if part == "_pane":
        return cmd_pane(rest[0])
    if part == "status":
        return cmd_status_line()
    if part == "start":
        return cmd_start()
    if verb == "_agent":
        return cmd_agent(rest)
    if verb == "_complete":
        return cmd_complete(rest, [name for name, *_ in COMMANDS])
    if verb in ("_as", "_in"):
        if verb == "_as":
            enter_account(rest)
        enter_unit(Paths.from_env(os.environ))
        return dispatch(choose_part(rest), rest)
    args = build_parser().parse_args(list(argv))
    user = getattr(args, "user", None)
    if user is not None:
        become(user, argv)
    return int(args.act(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent's SIG_IGN hides every status from us
    called, words = (sys.argv[0], sys.argv[1:]) if argv is None else ("-c", argv)
    script = os.path.realpath(__file__) if called == "-c" else called
    runtime = os.path.basename(called) if called != "-c" and os.path.islink(called) else ""
    runtime = "" if runtime in OWN_NAMES else runtime  # else a shim's, which is named after it
    part = "host" if runtime else choose_part(words)
    lacking = PARTS.get(part, "build_parser") not in globals()
    if argv is None and (lacking or sys.getfilesystemencoding() != "utf-8"):
        # In a Latin-1 locale the names of files would be other words than the same names in them.
        os.execv(sys.executable, [sys.executable, "-IS", "-X", "utf8", script, *words])
    try:
        if part in ("", "start"):
            ready_output()
        try:
            status = dispatch(part, words, runtime)
        except SystemExit as e:  # argparse's, after a help text or a usage error
            status = int(e.code or OK)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except Failure as e:
        report(e)
        return e.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains at exit
        if isinstance(e, BrokenPipeError):
            return 128 + signal.SIGPIPE
        why = "standard output is closed" if e.errno == errno.EBADF else str(e.strerror)
        report(Failure(f"{e.filename}: {e.strerror}" if e.filename else why))
        return TROUBLE


if __name__ == "__main__":
    exit_with(main())
