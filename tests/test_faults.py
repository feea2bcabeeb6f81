"""Each step of each command fails in its turn, or is the last one: nothing is lost or half done.

A good run of the command is traced; then, each in a world of its own, every call that changes
something meets a full disk, an I/O error, a read-only file system, an interruption, or a SIGKILL.
Afterwards every file is the old or the new one, no conversation id is gone, no conversation has
two writers, nothing half written is left, what the command said and its status are true, and
the same command run once more does its job.

An ordinary run takes some of the calls (of the slow commands every fifth or so) and kills them
and lets them fail by turns; with PERSISTENT_SESSIONS_TESTS_LONG=1 every call meets every fault,
which takes an hour.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import adopt_support
import faults
import hosted
import pytest
import sessions
import support
from adopt_support import NEW, OLD
from faults import KILL, LONG, STRACE, World
from sessions import NAME, claudes, doubled, new_id, row, state

import persistent_sessions as program

pytestmark = [
    pytest.mark.tmux,
    pytest.mark.limit(7200 if LONG else 600),
    pytest.mark.skipif(not STRACE, reason=f"{support.ABSENT}strace"),
]


class Case(NamedTuple):
    """A command: what it finds, how it is run, and what is missing until its job is done."""

    prepare: Callable[[World], Any]
    argv: Sequence[str]
    lacks: Callable[[World], str]
    cwd: str = ""  # below the home
    stride: int = 1  # in an ordinary run every so many calls
    input: Callable[[World], str] = lambda world: ""
    env: Callable[[World], dict[str, str]] = lambda world: {}
    status: int = 0  # of a good run
    silent: bool = False  # a hook: exits 0 and says nothing, whatever happens
    tick: Sequence[str] | None = None  # the next command that tidies up, where it does not itself
    base: Callable[[list[str]], list[str]] = lambda door: door  # how the program is started
    whole: Callable[[World], str] = lambda world: ""  # why a person's file is torn
    door: bool = True  # the program is installed in this world
    drive: Callable[..., faults.Ran] | None = None  # how to run it where there is more to it


# What `install` says when only what needs a user manager is missing, and when more is.
PART = r"not done: (?!units, linger;)"
OURS = re.compile(rf"({NAME}|task-adopt): ")


# ---- Judging a world ------------------------------------------------------


def torn(path: Path, text: str) -> str:
    """Return why a state file is neither an old nor a new one, ""."""
    kind = path.suffix[1:]
    if kind == "id":
        good = text.endswith("\n") and all(map(program.is_session_id, text.split()))
    elif kind == "run":
        good = program.parse_supervisor(text) is not None and "\nat=" in text
    elif kind == "event":
        good = program.parse_event(text) is not None and "\nname=" in text
    elif kind in ("health", "retired"):
        good = ("\nnotified=" if kind == "health" else "\nrenamed=") in text
    elif kind == "exit":
        good = " at=" in text
    elif kind == "tsv":
        good = (
            text.endswith("\n")
            and not program.parse_rows(text, declared=path.stem == "manifest")[1]
        )
    elif kind == "json":
        good = isinstance(json.loads(text), dict)
    else:
        return ""
    return "" if good and text.endswith(("\n", "}")) else f"{path}: {text!r}"


def unsound() -> list[str]:
    """Return the state files, and those of Claude's that are written, that are torn."""
    home = Path(os.environ["HOME"])
    files = [p for p in state().rglob("*") if p.is_file() and not p.name.startswith(".")]
    found = [torn(p, p.read_text()) for p in files]
    for path in (home / ".claude.json", home / ".claude/settings.json"):
        if path.exists():
            json.loads(path.read_text())
    return [why for why in found if why]


def ids() -> set[str]:
    """Return every conversation id that is filed."""
    files = [*state().glob("*.id"), *state().glob("attic/*.id")]
    return {i for path in files for i in path.read_text().split()}


def half_done(world: World) -> list[str]:
    """Return what is left half done, once what still works has ended."""
    left: list[str] = []

    def none_left() -> bool:
        left[:] = faults.temporaries(world.folder)
        return not left

    support.wait_until(none_left, 2.0)
    return left


def expect(good: bool, why: object) -> None:
    if not good:
        raise AssertionError(str(why))


def promised(case: Case, world: World, before: set[str]) -> None:
    """Check what holds whatever happened; `before` are the conversation ids filed before."""
    for what, found in (
        ("torn", unsound()),
        ("lost", before - ids()),
        ("two writers", doubled()),
        ("torn", case.whole(world)),
    ):
        expect(not found, f"{what}: {found}")


def judge(case: Case, world: World, kind: str, ran: faults.Ran, before: set[str]) -> None:
    """Hold a world against the promises, after a run with a fault."""
    expect("Traceback" not in ran.said, "a traceback")
    promised(case, world, before)
    expect("not launched" not in ran.said or not claudes(), "it is launched")
    if kind == KILL:
        expect(ran.status in (-9, 137), "it lived on")
        return
    left = half_done(world) if "unlink" not in ran.fault else []
    expect(not left, f"half done: {left}")
    if case.silent:
        expect(ran.status == 0 and (not ran.said or "write(" in ran.fault), "a hook is silent")
    elif ran.status == case.status and not re.search(PART, ran.said):
        expect(not case.lacks(world), f"it says that it did its job: {case.lacks(world)}")
    else:
        lines = ran.said.splitlines()
        clear = lines and all(OURS.match(line) for line in lines) and "None" not in ran.said
        expect(clear, "no clear line")


def later(world: World) -> None:
    """Let what a killed writer left be so old that it may be taken over, or away."""
    for path in (*world.home.glob(".claude.json.lock"), *world.folder.rglob("ledger/spawn/*")):
        os.utime(path, (0, 0))


def judge_again(case: Case, world: World, argv: list[str], before: set[str]) -> None:
    """Run the command once more, without a fault, and hold the world against its job."""
    later(world)
    did = not case.lacks(world)
    done = run(case, world, argv)
    if "persistent-sessions trust api" in done.stderr:  # the flag could not be written
        subprocess.run([*argv, "trust", "api"], check=True, capture_output=True)
        done = run(case, world, argv)
    refused = did and "never replaced" in done.stderr
    expect(done.returncode == case.status or refused, f"again: {done.stderr!r}")
    expect(not case.lacks(world), f"again: {case.lacks(world)}: {done.stderr!r}")
    promised(case, world, before)
    if case.tick is not None:
        run(case._replace(argv=case.tick), world, argv)
    left = half_done(world)
    expect(not left, f"again: half done: {left}")


def run(case: Case, world: World, argv: Sequence[str]) -> Any:
    return subprocess.run(
        [*argv, *case.argv],
        input=case.input(world),
        cwd=world.home / case.cwd,
        env={**os.environ, **case.env(world)},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
    )


def traced(case: Case, world: World, argv: list[str], *options: str) -> faults.Ran:
    os.environ.update(case.env(world))
    cwd = world.home / case.cwd
    return faults.traced(
        [*argv, *case.argv], world.folder, *options, input=case.input(world), cwd=cwd
    )


# ---- The commands ---------------------------------------------------------


def prepare_open(world: World) -> None:
    world.claude()
    sessions.configure()
    (world.home / "work").mkdir()


def lacks_open(world: World) -> str:
    registry = state() / "registry.tsv"
    if not registry.exists() or "\nwork\t" not in registry.read_text():
        return "no row"
    return "" if len(claudes()) == 1 and "work" in sessions.panes() else "not up"


def prepare_start(world: World) -> None:
    """One declared session that died, an ended one whose row stayed."""
    world.claude()
    sessions.declare(row("api"))
    sessions.file_id("api", new_id(1))
    sessions.transcript(new_id(1))
    (world.home / "gone").mkdir()
    registry = program.Spec("gone", str(world.home / "gone"))
    (state() / "registry.tsv").write_text(program.format_registry([registry]))
    mark = program.format_retired(registry, "ended at its prompt", "2026-01-01T00:00:00Z")
    (state() / "gone.retired").write_text(mark)
    health = program.Health(0, 0.0, "BLOCKED")
    (state() / "api.health").write_text(program.format_health(health))


def lacks_start(world: World) -> str:
    if sessions.head_id("api") != new_id(1):
        return "its conversation is not the first"
    found = [words for words in claudes().values() if new_id(1) in words]
    return "" if len(found) == 1 and "api" in sessions.panes() else "not up"


def prepare_retire(world: World) -> None:
    sessions.configure()
    sessions.file_id("new", new_id(1))
    rows = [
        program.Spec("old", str(world.home)),
        program.Spec("new", str(world.home), renamed="old"),
        program.Spec("other", str(world.home), args=("--verbose",)),
    ]
    (state() / "registry.tsv").write_text(program.format_registry(rows))


def lacks_retire(world: World) -> str:
    marks = {path.name for path in state().glob("*.retired")}
    rows, _ = program.parse_rows((state() / "registry.tsv").read_text(), declared=False)
    if marks != {"old.retired", "new.retired"} or [r.name for r in rows] != ["other"]:
        return f"{marks} {rows}"
    return "" if rows[0].args == ("--verbose",) else "the other row"


def supervised(world: World) -> None:
    """Make session `api`, whose supervisor and claude a sleeping process plays."""
    sessions.file_id("api", new_id(1))
    support.run_tmux("new-session", "-d", "-s", "api", "exec sleep 600")
    pid, socket = sessions.panes()["api"], f"{os.environ['TMUX_TMPDIR']}/tmux-{os.getuid()}/default"
    start, boot = support.start_time(pid), program.boot_id()
    here = program.Supervisor(boot, pid, start, pid, start, "%0", socket, new_id(1), 1.0)
    (state() / "api.run").write_text(program.format_supervisor(here))


def prepare_hook(world: World) -> None:
    sessions.configure()
    supervised(world)


def hook_env(world: World) -> dict[str, str]:
    run_ = sessions.pairs("api", "run")
    place = {"TMUX": f"{run_['socket']},1,0", "TMUX_PANE": "%0"}
    return {**place, "PS_SESSION_NAME": "api", "CLAUDE_PID": run_["pid"]}


HOOK = {"session_id": new_id(2), "hook_event_name": "SessionStart", "source": "clear"}


def lacks_hook(world: World) -> str:
    filed = (state() / "api.id").read_text().split()
    fired = sessions.pairs("api", "event").get("id")
    return "" if (filed, fired) == ([new_id(2), new_id(1)], new_id(2)) else f"{filed} {fired}"


TRUSTED = '{"numStartups": 1e0, "projects": {}}\n'


def prepare_trust(world: World) -> None:
    world.claude()
    sessions.declare(row("api"))
    (world.home / ".claude.json").write_text(TRUSTED)
    supervised(world)
    (state() / "api.health").write_text(program.format_health(program.Health(0, 0.0, "BLOCKED")))


def whole_trust(world: World) -> str:
    text = (world.home / ".claude.json").read_text()
    return "" if text.startswith('{"numStartups": 1e0, "projects": {') else text


def lacks_trust(world: World) -> str:
    entry = json.loads((world.home / ".claude.json").read_text())["projects"]
    flag = entry.get(str(world.home / "api"), {}).get("hasTrustDialogAccepted")
    told = sessions.pairs("api", "health")["notified"]
    return "" if flag and not told else f"{flag} {told}"


RC = "# a person's own line\n"
PROGRAMS = {"persistent_sessions.py": NAME, "task_adopt.py": "task-adopt"}
UNITS = (f"{NAME}.service", f"{NAME}.timer")
SETTINGS = {"model": "opus"}


def prepare_install(world: World) -> None:
    world.claude()
    sessions.declare(row("api"))
    sessions.file_id("nobody", new_id(3))
    (world.home / ".bashrc").write_text(RC)
    (world.home / ".claude").mkdir()
    (world.home / ".claude/settings.json").write_text(json.dumps(SETTINGS))
    systemctl = world.bin / "systemctl"
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    systemctl.chmod(0o755)


def placed(world: World) -> dict[Path, str]:
    """Return what `install` puts where, and the whole content."""
    units = {world.home / ".config/systemd/user" / u: f"{support.ROOT}/units/{u}" for u in UNITS}
    found = {world.bin / p: f"{support.ROOT}/{m}" for m, p in PROGRAMS.items()}
    return {p: Path(source).read_text() for p, source in {**units, **found}.items()}


def whole_install(world: World) -> str:
    for path, text in placed(world).items():
        if path.exists() and path.read_text() != text:
            return str(path)
    rc = (world.home / ".bashrc").read_text()
    settings = json.loads((world.home / ".claude/settings.json").read_text())
    if rc not in (RC, RC + program.SHELL_FUNCTION) or settings["model"] != "opus":
        return f"{rc} {settings}"
    return ""


def lacks_install(world: World) -> str:
    library = world.home / f".local/lib/{NAME}"
    wanted = [*placed(world), *(library / m for m in PROGRAMS)]
    wanted.append(world.home / f".config/systemd/user/{NAME}.service.d/environment.conf")
    missing = [str(path) for path in wanted if not path.exists()]
    if missing or (world.home / ".bashrc").read_text() == RC:
        return f"{missing} or the function"
    if "hooks" not in (world.home / ".claude/settings.json").read_text():
        return "the task hook"
    trust = world.home / ".claude.json"
    if not trust.exists() or str(world.home / "api") not in trust.read_text():
        return "trust"
    return "" if list(state().glob("attic/nobody.*.id")) else "the attic"


def prepare_uninstall(world: World) -> None:
    prepare_install(world)
    systemctl = world.bin / "systemctl"
    systemctl.write_text("#!/bin/sh\nexit 0\n")
    library = world.home / f".local/lib/{NAME}"
    (library / "__pycache__").mkdir(parents=True)
    (library / "__pycache__/x.pyc").write_text("")
    for path, text in placed(world).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for module, name in PROGRAMS.items():
        os.symlink(f"../../bin/{name}", library / module)
    (world.home / ".bashrc").write_text(RC + program.SHELL_FUNCTION)
    adopt = [program.python(), "-IS", str(world.bin / "task-adopt"), "install"]
    subprocess.run(adopt, check=True)


def lacks_uninstall(world: World) -> str:
    left = [str(path) for path in placed(world) if path.exists()]
    if left or (world.home / f".local/lib/{NAME}").exists():
        return f"{left} or the library"
    if (world.home / ".bashrc").read_text() != RC:
        return "the function"
    return "" if "hooks" not in (world.home / ".claude/settings.json").read_text() else "the hook"


# ---- Hosted commands ------------------------------------------------------

COMMAND = ["sh", "-c", "echo x >>$HOME/ran; exit 7"]


def times_run(world: World) -> int:
    path = world.home / "ran"
    return len(path.read_text().split()) if path.exists() else 0


def prepare_host(world: World) -> None:
    """What stands in for a user manager runs the command without a scope."""
    sessions.configure()  # no cap: to count what runs would look at every process of this machine
    os.makedirs(f"{os.environ['XDG_RUNTIME_DIR']}/systemd/private")
    scope = world.bin / "systemd-run"
    scope.write_text(
        '#!/bin/sh\nwhile case $1 in --*) ;; *) false ;; esac; do shift; done\nexec "$@"\n'
    )
    scope.chmod(0o755)
    shutil.copy(scope, world.bin / "systemctl")
    (world.bin / "systemctl").write_text("#!/bin/sh\nexit 1\n")


def drive_host(case: Case, world: World, argv: list[str], *options: str) -> faults.Ran:
    ran = traced(case, world, argv, *options)
    support.wait_until(lambda: not list((state() / "ledger").glob("spawn/*")), 1.0)
    expect(times_run(world) <= 1, "it ran twice")
    expect(ran.status != 7 or times_run(world) == 1, "it never ran")
    (world.home / "ran").unlink(missing_ok=True)
    return ran


def lacks_host(world: World) -> str:
    return ""


# ---- Ends, in a pane ------------------------------------------------------


def prepare_end(world: World) -> None:
    """A conversation on disk and a session that a person opened, its pane not yet there."""
    prepare_open(world)
    support.run_tmux("new-session", "-d", "-s", "other", "exec sleep 600")
    support.run_tmux("set-option", "-g", "remain-on-exit", "on")
    sessions.file_id("work", new_id(1))
    sessions.transcript(new_id(1))
    spec = program.Spec("work", str(world.home / "work"))
    (state() / "registry.tsv").write_text(program.format_registry([spec]))
    projects = {"projects": {spec.directory: {"hasTrustDialogAccepted": True}}}
    (world.home / ".claude.json").write_text(json.dumps(projects))


def pane_ran(said: str, trace: str, status: int = 0) -> faults.Ran:
    """Return what came of a process in a pane, of whose screen only our own lines count."""
    lines = [line for line in said.splitlines() if line.startswith((NAME, "Traceback"))]
    status = status or (1 if lines else 0)
    return faults.Ran(-9 if "killed by SIGKILL" in trace else status, "\n".join(lines), trace)


def drive_end(case: Case, world: World, argv: list[str], *options: str) -> faults.Ran:
    """Run a session's supervisor in its pane until its person leaves, or it is killed."""
    trace = world.folder / "trace"
    words = [*faults.strace(trace, "-D", *options), *argv, "run", "work", new_id(1)]
    folder = str(world.home / "work")
    support.run_tmux("new-session", "-d", "-s", "work", "-c", folder, shlex.join(["exec", *words]))
    show = ("display-message", "-p", "-t", "=work:", "#{pane_dead}")

    def ended() -> bool:
        return support.run_tmux(*show).stdout != "0\n"

    up = support.wait_until(lambda: ended() or sessions.pairs("work", "event"), 20)
    expect(up, "it does not come up")
    left = not ended()
    if left:
        sessions.type_line("work", "/exit")
    expect(support.wait_until(ended, 20), "it does not end")
    expect(support.wait_until(lambda: not claudes(), 20), "its claude lives on")
    said = support.run_tmux("capture-pane", "-p", "-J", "-S", "-", "-t", "=work:").stdout
    support.run_tmux("kill-session", "-t", "=work")
    ran = pane_ran(said, faults.read_trace(trace))
    if left and ran.hit and not ran.killed and "retired" not in ran.fault:
        expect((state() / "work.retired").exists(), "its person's wish is lost")
    return ran


def lacks_end(world: World) -> str:
    """Tell what is missing of a deliberate end, or of a session that is back after a fault."""
    if (state() / "work.retired").exists():
        row_stays = "\nwork\t" in (state() / "registry.tsv").read_text()
        return "up again" if "work" in sessions.panes() else "a row" if row_stays else ""
    if sessions.head_id("work") != new_id(1):
        return "its conversation is not the first"
    return "" if [new_id(1) in words for words in claudes().values()] == [True] else "not up"


def sessions_of_none(world: World) -> None:
    sessions.configure()


def drive_pane(case: Case, world: World, argv: list[str], *options: str) -> faults.Ran:
    """Play the caller of a hosted command whose pane meets a fault."""
    trace = world.folder / "trace"
    os.environ["AGENT_SESSIONS_DIR"] = str(world.home / "ledger")
    one = hosted.Pane(*COMMAND, env=dict(os.environ))
    one.start([*faults.strace(trace, "-D", *options), *argv])
    poll, status = select.poll(), 7
    poll.register(one.listener.fileno(), select.POLLIN)
    support.wait_until(lambda: poll.poll(20) or one.terminal.process.poll() is not None)
    try:
        if poll.poll(0):
            one.meet()
            one.told()
            status = program.read_receipt(one.folder)
        elif program.claim_job(one.folder, "caller"):
            subprocess.run(COMMAND, check=False)
        else:
            status = program.read_receipt(one.folder)
    except (program.Failure, OSError) as e:
        expect("without a receipt" in str(e) or "Broken pipe" in str(e), e)
        status = 125
    one.terminal.wait(20)
    expect(times_run(world) <= 1, "it ran twice")
    expect(status == 125 or (status, times_run(world)) == (7, 1), f"{status}")
    ran = pane_ran(one.terminal.text(), faults.read_trace(trace), status % 7)
    program.remove_tree(str(one.path))  # as its caller does
    one.end()
    return ran


# ---- task-adopt -----------------------------------------------------------


def adopt_program(door: list[str]) -> list[str]:
    return adopt_support.program()


def lists(world: World) -> adopt_support.Box:
    return adopt_support.Box(world.folder, "home")


def prepare_adopt(world: World) -> None:
    lists(world).session(OLD, adopt_support.task(1), adopt_support.task(2, "completed"))


def payload(world: World) -> str:
    return lists(world).payload()


def lacks_adopt(world: World) -> str:
    return "" if lists(world).has() else "the list"


def whole_adopt(world: World) -> str:
    tasks, sizes = world.home / ".claude/tasks", {OLD: 2, NEW: 2}
    found = {p.name: len(list(p.glob("*.json"))) for p in tasks.iterdir() if p.name in sizes}
    return "" if found.items() <= sizes.items() and OLD in found else str(found)


def prepare_settings(world: World) -> None:
    (world.home / ".claude").mkdir()
    (world.home / ".claude/settings.json").write_text(json.dumps(SETTINGS))


def prepare_hooked(world: World) -> None:
    prepare_settings(world)
    subprocess.run([*adopt_support.program(), "install"], check=True)


def has_hook(world: World) -> bool:
    settings = json.loads((world.home / ".claude/settings.json").read_text())
    assert settings["model"] == "opus"
    return "hooks" in settings


CASES = {
    "open": Case(prepare_open, ["open"], lacks_open, cwd="work", stride=5),
    "start": Case(prepare_start, ["start"], lacks_start, stride=5),
    "retire": Case(prepare_retire, ["retire", "new"], lacks_retire, stride=2),
    "hook": Case(
        prepare_hook, ["hook"], lacks_hook, input=lambda world: json.dumps(HOOK), env=hook_env,
        silent=True, tick=["list"],
    ),
    "trust": Case(prepare_trust, ["trust", "api"], lacks_trust, whole=whole_trust, stride=3),
    "install": Case(
        prepare_install, ["install"], lacks_install, status=1, whole=whole_install, door=False,
        stride=8,
    ),
    "uninstall": Case(
        prepare_uninstall, ["uninstall"], lacks_uninstall, whole=whole_install, door=False,
        stride=3,
    ),
    "host": Case(
        prepare_host, ["host", "--name", "job", "--", *COMMAND], lacks_host, status=7,
        drive=drive_host, stride=3, tick=["list"],
    ),
    "a session's end": Case(
        prepare_end, ["start"], lacks_end, drive=drive_end, stride=5,
    ),
    "a hosted command's end": Case(
        sessions_of_none, ["list"], lacks_host, drive=drive_pane, stride=2,
    ),
    "task-adopt": Case(
        prepare_adopt, [], lacks_adopt, input=payload, whole=whole_adopt, base=adopt_program,
        silent=True, stride=2,
    ),
    "task-adopt adopt": Case(
        prepare_adopt, ["adopt", "--from", OLD, "--to", NEW], lacks_adopt, input=payload,
        whole=whole_adopt, base=adopt_program, stride=2, tick=[],
    ),
    "task-adopt install": Case(
        prepare_settings, ["install"], lambda world: "" if has_hook(world) else "no hook",
        base=adopt_program,
    ),
    "task-adopt uninstall": Case(
        prepare_hooked, ["uninstall"], lambda world: "a hook" if has_hook(world) else "",
        base=adopt_program,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command line of the program, imported compiled."""
    return faults.make_door(tmp_path_factory.mktemp("door") / "door")


MISSED = "missed"  # what a command asks again and again is not asked as often each time


def broken(case: Case, world: World, argv: list[str], point: faults.Point, kind: str) -> str:
    """Let one run meet its fault; return which promise was broken, "" for none, or MISSED."""
    before, ran = ids(), faults.Ran(0, "", "")
    try:
        ran = (case.drive or traced)(case, world, argv, *point.options(kind))
        if ran.hit:
            judge(case, world, kind, ran, before)
        judge_again(case, world, argv, before)
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as e:
        why = str(e).splitlines()[0][:300]
        where = ran.fault[:150] or point
        return f"{kind} at {where}\n  said {ran.said[-300:]!r} ({ran.status})\n  {why}"
    return "" if ran.hit else MISSED


@pytest.mark.parametrize("name", CASES)
def test_whatever_step_fails_nothing_is_lost_or_half_done(private, door, name):
    case = CASES[name]
    argv, library = case.base(door), Path(door[-1].split('"')[1])

    def world(at: object) -> World:
        made = World(private, str(at), library if case.door else None)
        case.prepare(made)
        return made

    first = world("first")
    try:
        good = (case.drive or traced)(case, first, argv)
        assert (good.status, case.lacks(first)) == (case.status, ""), good.said
        points = list(faults.points(good.trace, str(first.folder)))
    finally:
        first.end()
    results = []
    for at, (point, kind) in enumerate(faults.chosen(points, case.stride)):
        here = world(at)
        try:
            results.append(broken(case, here, argv, point, kind))
        finally:
            here.end()
    wrong = [result for result in results if result not in ("", MISSED)]
    missed = results.count(MISSED)
    print(f"{name}: {len(points)} calls, {len(results)} faults, {missed} missed")
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} of {len(results)}:", *wrong]), pytrace=False)
    assert missed <= 2 + len(results) // 10


# ---- What was found, by name ----------------------------------------------


def to_full(ps, *argv, **full):
    """Run a command with a full disk behind its stdout or stderr."""
    with open("/dev/full", "w") as disk:
        streams = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **dict.fromkeys(full, disk),
        }
        return subprocess.run([*ps.argv, *argv], text=True, timeout=60, **streams)


@pytest.mark.parametrize("given, why", [
    (">&-", "standard output is closed"), (">/dev/full", "No space left on device"),
])  # fmt: skip
@pytest.mark.parametrize("words", [
    "manifest", "capture api", "list", "logs api", "--help", "--version", "host --help",
])  # fmt: skip
def test_output_that_cannot_be_written_is_one_clear_line(ps, claude, words, given, why):
    sessions.declare(row("api"))
    ps("start")
    script = f'"$@" {words} {given}'
    done = subprocess.run(["sh", "-c", script, "sh", *ps.argv], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"persistent-sessions: {why}\n")


def test_a_command_with_nothing_to_print_needs_no_output(ps):
    sessions.declare(row("api"))
    argv = ["sh", "-c", '"$@" retire api <&- >&-', "sh", *ps.argv]
    assert subprocess.run(argv, capture_output=True, text=True).returncode == 0


def test_a_full_disk_behind_stderr_changes_neither_work_nor_status(ps, home):
    sessions.declare(row("api"))
    assert to_full(ps, "retire", "api", stderr=True).returncode == 0
    assert (state() / "api.retired").exists()


def test_a_full_disk_behind_stdout_is_one_line(ps, home):
    sessions.configure()
    done = to_full(ps, "list", stdout=True)
    assert (done.returncode, done.stderr) == (1, f"{NAME}: No space left on device\n")


def test_uninstall_leaves_what_is_needed_to_take_the_hook_out(ps, home):
    tool = home / ".local/bin/task-adopt"
    tool.write_text("raise SystemExit('not now')\n")
    done = ps("uninstall")
    assert done.returncode == 1 and "not now" in done.stderr
    assert tool.exists() and f"removed {tool}" not in done.stderr


def test_a_launch_that_was_taken_back_starts_nothing(private, home, claude, terminal):
    """The pane of a killed launcher is slow to say that it runs; the next launch is quicker."""
    (home / "work").mkdir()
    job = home / ".work.job.4100000.0.tmp"
    state().mkdir(0o700, parents=True)
    program.write_job(str(job), program.Job((str(claude),), str(home / "work"), dict(os.environ)))
    slow = faults.strace(private / "trace", "-e", "inject=rename:delay_enter=1000000:when=1")
    run_ = [*support.Program(support.SESSIONS).argv, "run", "work", "--job", str(job)]
    pane = terminal(*slow, *run_)
    assert support.wait_until(lambda: list(state().glob(".work.run.*")))
    program.sweep(str(home))
    assert pane.wait(20) != 0 and not job.exists() and claudes() == {}
