"""Many hooks at once, a kill at any moment, disks that refuse: a list is absent or complete."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
from adopt_support import NEW, OLD, OTHER, Box, Said, files, program, task
from support import ABSENT

STRACE = shutil.which("strace")
CHANGES = "mkdir,mkdirat,openat,write,utimensat,fsync,fdatasync,syncfs,renameat2,unlinkat,rmdir"
CHANGES += ",unlink,umask"


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


def start_many(box, sessions):
    """Start a hook for each of `sessions` and give them all their payload at the same moment."""
    pipe = subprocess.PIPE
    usual = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "env": box.env(), "cwd": box.project}
    running = [subprocess.Popen(program(), **usual) for _ in sessions]
    for process, session in zip(running, sessions):
        process.stdin.write(box.payload(session).encode())
        process.stdin.flush()
    said = [Said(p.wait(60), p.stdout.read().decode(), p.stderr.read().decode()) for p in running]
    for process in running:
        process.communicate()
    return said


def test_of_twenty_hooks_for_one_session_one_publishes_and_all_show_it(box):
    box.session(OLD, *(task(n) for n in range(1, 21)))
    said = start_many(box, [NEW] * 20)
    assert {(s.status, s.stderr) for s in said} == {(0, "")}
    assert sum("recovered" in s.context for s in said) == 1
    assert all("20 open" in s.context for s in said)
    assert files(f"{box.tasks}/{NEW}") == files(f"{box.tasks}/{OLD}") and box.lists() == {OLD, NEW}


def test_twenty_hooks_for_twenty_sessions_each_get_a_complete_list(box):
    source = box.session(OLD, *(task(n) for n in range(1, 21)))
    sessions = [f"{n:08d}-0000-4000-8000-000000000000" for n in range(20)]
    said = start_many(box, sessions)
    assert all(s.status == 0 and "recovered" in s.context for s in said)
    assert all(files(f"{box.tasks}/{s}") == files(source) for s in sessions)
    assert box.lists() == {OLD, *sessions}


WON = task(9, subject="the winner")


@pytest.mark.parametrize("made", ["empty", "filled"])
def test_a_list_that_appears_in_the_last_moment_wins(box, made):
    source = files(box.session(OLD))
    fill = f"open(b+'/9.json','w').write({json.dumps(WON)!r})" if made == "filled" else "0"
    code = "import os,sys;sys.path.append(sys.argv.pop(1));import task_adopt as m;"
    code += "r=m.rename_noreplace;"
    code += f"m.rename_noreplace=lambda a,b:(os.mkdir(b),{fill},r(a,b));sys.exit(m.main())"
    argv = [*program()[:2], "-c", code, os.path.dirname(program()[2])]
    said = box.hook(argv=argv)
    assert "recovered" not in said.stdout and ("the winner" in said.stdout) == (made == "filled")
    assert len(files(f"{box.tasks}/{NEW}")) == (made == "filled")
    assert files(f"{box.tasks}/{OLD}") == source and box.lists() == {OLD, NEW}


# ---- Killed ---------------------------------------------------------------


def traced(box, *options, session=NEW):
    """Run the hook under strace; return its status and the trace."""
    trace = f"{box.home}/trace"
    argv = [STRACE, "-qq", "-f", "-o", trace, *options, *program()]
    given = {"input": box.payload(session).encode(), "env": box.env(), "cwd": box.project}
    done = subprocess.run(argv, capture_output=True, timeout=60, **given)
    with open(trace) as f:
        return done.returncode, f.read()


def changes(trace):
    """Yield each changing call of a trace and how many of its name came up to it."""
    counts = {}
    for line in trace.splitlines():
        call = re.match(r"(?:\d+ +)?(\w+)\(", line)
        if call:
            name = call[1]
            counts[name] = counts.get(name, 0) + 1
            reading = name == "openat" and "O_CREAT" not in line
            if not reading and not (name == "write" and "(1, " in line):
                yield name, counts[name]


def is_sound(box, source):
    """Tell whether the list is absent, or complete and the source untouched."""
    whole = files(f"{box.tasks}/{OLD}")
    return whole == source and (not box.has() or files(f"{box.tasks}/{NEW}") == whole)


@pytest.mark.skipif(not STRACE, reason=f"{ABSENT}strace")
@pytest.mark.limit(600)
def test_killed_at_any_call_that_changes_something_it_leaves_none_or_all_and_no_litter(tmp_path):
    first = Box(tmp_path / "first")
    first.session(OLD, task(1), task(2, "completed"))
    status, trace = traced(first, "-e", f"trace={CHANGES}")
    assert (status, first.has()) == (0, True)
    points = list(changes(trace))
    names = {name for name, _ in points}
    assert {"mkdir", "openat", "write", "syncfs", "renameat2", "fsync"} <= names
    for at, (name, count) in enumerate(points):
        box = Box(tmp_path / str(at))
        source = files(box.session(OLD, task(1), task(2, "completed")))
        kill = f"inject={name}:signal=SIGKILL:when={count}"
        status, _ = traced(box, "-e", f"trace={CHANGES}", "-e", kill)
        assert status in (-9, 137), (name, count)
        assert is_sound(box, source), (name, count)
        box.hook()
        assert files(f"{box.tasks}/{NEW}") == source and box.lists() == {OLD, NEW}, (name, count)


@pytest.mark.skipif(not STRACE, reason=f"{ABSENT}strace")
@pytest.mark.limit(600)
@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "EPERM"])
def test_whatever_call_fails_the_list_is_none_or_all_and_the_session_starts(tmp_path, code):
    first = Box(tmp_path / "first")
    first.session(OLD, task(1))
    _, trace = traced(first, "-e", f"trace={CHANGES}")
    for at, (name, count) in enumerate(changes(trace)):
        if name == "umask":
            continue  # cannot fail
        box = Box(tmp_path / str(at))
        source = files(box.session(OLD, task(1)))
        fail = f"inject={name}:error={code}:when={count}"
        status, _ = traced(box, "-e", f"trace={CHANGES}", "-e", fail)
        assert status == 0 and is_sound(box, source), (name, count)
        assert box.lists() <= {OLD, NEW}, (name, count)


# ---- Disks that refuse ----------------------------------------------------

UNSYNCED = """import errno,os,stat,sys
sync=os.fsync
def fsync(fd):
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        raise OSError(getattr(errno,sys.argv[1]),"injected")
    sync(fd)
os.fsync=fsync
sys.path.append(sys.argv[2])
import task_adopt as m
sys.exit(m.main(sys.argv[3:]))"""


def unsynced(code):
    """Return what runs the program where the sync of a folder fails with `code`."""
    return [*program()[:2], "-c", UNSYNCED, code, os.path.dirname(program()[2])]


@pytest.mark.parametrize("code", ["EINVAL", "ENOTSUP", "ENOSYS"])
def test_a_disk_that_cannot_sync_a_folder_is_no_error(box, code):
    box.session(OLD)
    adopt = [*unsynced(code), "adopt", "--from", OLD, "--to", OTHER]
    for argv in (adopt, [*unsynced(code), "install"]):
        done = subprocess.run(argv, env=box.env(), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert f"recovered from {OLD}" in box.hook(argv=unsynced(code)).context
    assert files(f"{box.tasks}/{OTHER}") == files(f"{box.tasks}/{NEW}")


def test_a_disk_that_fails_to_sync_a_folder_is_one(box):
    box.session(OLD)
    argv = [*unsynced("EIO"), "adopt", "--from", OLD, "--to", NEW]
    done = subprocess.run(argv, env=box.env(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "injected" in done.stderr and done.stderr.count("\n") == 1


needs_mounts = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason=f"{ABSENT}root and unshare, to mount"
)


def on_disk(box, *steps):
    """Run the hook with the lists on a small disk of its own; return what it said and the disk."""
    script = f"""
set -e
mkdir {box.home}/disk
mount -t tmpfs -o size=256k,nr_inodes=64 none {box.home}/disk
cp -a {box.tasks}/. {box.home}/disk/
mount --bind {box.home}/disk {box.tasks}
{chr(10).join(steps)}
set +e
"$@"
status=$?
find {box.tasks} -mindepth 1 -maxdepth 1 -printf '%f\\n' >{box.home}/found
exit $status
"""
    said = box.hook(argv=["unshare", "-m", "sh", "-c", script, "sh", *program()])
    with open(f"{box.home}/found") as f:
        return said, set(f.read().split())


@needs_mounts
def test_on_another_disk_it_works(box):
    box.session(OLD)
    said, found = on_disk(box)
    assert "recovered" in said.context and found == {OLD, NEW}


@needs_mounts
@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_full_disk_gives_the_hint_and_leaves_nothing_behind(box, free):
    box.session(OLD, *(task(n, description="x" * 5000) for n in range(1, 6)))
    fill = f"dd if=/dev/zero of={box.tasks}/fill bs=4k 2>/dev/null || true"
    release = f"truncate -s -{free * 4}k {box.tasks}/fill"
    said, found = on_disk(box, fill, release)
    assert f"--from {OLD}" in said.context and "No space" in said.context
    assert found == {OLD, "fill"}


@needs_mounts
def test_a_read_only_disk_gives_the_hint(box):
    box.session(OLD)
    said, found = on_disk(box, f"mount -o remount,bind,ro {box.tasks}")
    assert f"--from {OLD}" in said.context and "Read-only" in said.context and found == {OLD}


@needs_mounts
def test_a_read_only_disk_still_shows_the_own_list(box):
    box.store(NEW, task(1))
    box.store(".task-adopt-4000000-1", task(1))
    said, _ = on_disk(box, f"mount -o remount,bind,ro {box.tasks}")
    assert "subject 1" in said.context and said.stderr == ""


@needs_mounts
def test_without_proc_nothing_that_may_be_held_is_adopted(box):
    box.session(OLD)
    box.record(OLD, os.getpid())
    said, found = on_disk(box, "mount -t tmpfs none /proc")
    assert "recovered" not in said.context and found == {OLD}
