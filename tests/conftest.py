"""Every test gets a home, a tmux and an environment of its own; see `private` below."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import boxlib
import support
from support import ABSENT, ADOPT, SESSIONS, Program, Terminal

TEST_LIMIT = 120  # seconds for one phase of one test; the marker `limit` raises it

MARKERS = (
    "tmux: needs a real tmux",
    "box: boots a throw-away machine (root, systemd)",
    "claude_real: needs the real Claude Code, named by PS_TEST_CLAUDE",
    "root: needs root",
    "limit(seconds): this test may take so long",
)
REAL_CLAUDE = os.environ.get("PS_TEST_CLAUDE", "")
IN_CI = os.environ.get("CI", "") not in ("", "0", "false")

GITCONFIG = """[user]
\tname = Tester
\temail = tester@example.org
[init]
\tdefaultBranch = main
[advice]
\tdetachedHead = false
"""


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:  # nohup and "&" ignore for what we run, too
            signal.signal(number, lambda *_: None)


# ---- Limits and skips -----------------------------------------------------


class TooSlow(Exception):
    """A test phase ran into its limit."""


def limited(item: pytest.Item) -> Iterator[None]:
    """Interrupt this phase of the test when its time is over."""
    marker = item.get_closest_marker("limit")
    seconds = marker.args[0] if marker else TEST_LIMIT

    def ring(_signum: int, _frame: Any) -> None:
        raise TooSlow(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from limited(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from limited(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield from limited(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI a skip is an error, unless its reason says that this machine cannot run the test."""
    result: Any = yield
    report = result.get_result()
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if ABSENT not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"


# ---- The private world of one test ----------------------------------------


def private_environment(folder: str) -> dict[str, str]:
    """Return the whole environment of a test; nothing of the caller's gets in but these names."""
    home = os.path.join(folder, "home")
    kept = ("CI", "TMPDIR", "PYTEST_CURRENT_TEST")
    user = pwd.getpwuid(os.getuid()).pw_name
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PATH": f"{home}/.local/bin:/usr/local/bin:/usr/bin:/bin",
        "TMUX_TMPDIR": os.path.join(folder, "t"),
        # No bus: neither a user manager nor logind (which could change this machine) answers.
        "XDG_RUNTIME_DIR": os.path.join(folder, "r"),
        "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={folder}/no-bus",
    }


@pytest.fixture(autouse=True)
def private() -> Iterator[Path]:
    """Give the test a home, a tmux folder and an environment of its own, and clean up after it.

    The folder is short because the path of a unix socket may have 107 bytes at most.
    Afterwards every tmux server in it is ended, then every process that still carries its HOME.
    """
    before = dict(os.environ)
    folder = tempfile.mkdtemp(prefix="ps", dir="/tmp")
    for name in ("home", "t", "r"):
        os.mkdir(os.path.join(folder, name), 0o700)
    os.makedirs(os.path.join(folder, "home", ".local", "bin"))
    with open(os.path.join(folder, "home", ".gitconfig"), "w", encoding="utf-8") as f:
        f.write(GITCONFIG)
    os.environ.clear()
    os.environ.update(private_environment(folder))
    try:
        yield Path(folder)
    finally:
        support.end_tmux_below([folder])
        support.end_processes(support.pids_marked("HOME", os.path.join(folder, "home")), 1.0)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def home(private: Path) -> Path:
    return private / "home"


@pytest.fixture
def tmux(private: Path) -> Callable[..., Any]:
    """Run `tmux -u ARGS` against the default server of this test."""
    return support.run_tmux


@pytest.fixture
def ps(private: Path) -> Iterator[Program]:
    """Run persistent_sessions.py; `ps.start(...)` leaves it running."""
    program = Program(SESSIONS)
    yield program
    program.end()


@pytest.fixture
def adopt(private: Path) -> Iterator[Program]:
    """Run task_adopt.py; `adopt.start(...)` leaves it running."""
    program = Program(ADOPT)
    yield program
    program.end()


@pytest.fixture
def terminal(private: Path) -> Iterator[Callable[..., Terminal]]:
    """Run a command on a pseudo-terminal: `terminal("sh", size=(50, 200))`."""
    made: list[Terminal] = []

    def make(*argv: str, **how: Any) -> Terminal:
        made.append(Terminal(*argv, **how))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def claude(home: Path) -> Path:
    """Put the stand-in agent on PATH and return where it is."""
    path = home / ".local" / "bin" / "claude"
    shutil.copy(os.path.join(support.TESTS, "fakes", "claude"), path)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def box_reason() -> str:
    """Return why there can be no box here.  In CI root has to have one."""
    reason = boxlib.why_not()
    if reason and IN_CI and os.getuid() == 0:
        pytest.fail(f"no box in CI: {reason}", pytrace=False)
    return reason


@pytest.fixture
def machine(private: Path, box_reason: str) -> Iterator[boxlib.Box]:
    """Boot a throw-away machine that nobody has touched: root, no other user."""
    if box_reason:
        pytest.skip(f"{ABSENT}a box ({box_reason})")
    folder = tempfile.mkdtemp(prefix="psbox", dir="/var/tmp")
    box = boxlib.Box(folder)
    try:
        box.boot()
        yield box
    finally:
        box.remove()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def box(machine: boxlib.Box) -> boxlib.Box:
    """Return a booted machine with two people, ann and bob; both linger and have this clone."""
    for name in ("ann", "bob"):
        machine.add_user(name)
        machine.put_repository(name)
    return machine


@pytest.fixture
def real_claude() -> str:
    """Return the path of the real Claude Code, or skip."""
    if not os.access(REAL_CLAUDE, os.X_OK):
        pytest.skip(f"{ABSENT}the real claude (PS_TEST_CLAUDE names none)")
    return REAL_CLAUDE


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return support.wait_until
