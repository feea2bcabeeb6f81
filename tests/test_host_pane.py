"""The pane's side of a hosted launch: receipt, job, data, signals.  No tmux is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hosted import Pane
from support import alive, wait_until

import persistent_sessions as program

pytestmark = pytest.mark.limit(20)


@pytest.fixture
def pane(private):
    """Start a launch's pane: `pane("sh", "-c", ...)`; the caller's word is still to come."""
    made = []

    def make(*argv, **how):
        made.append(Pane(*argv, **how))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.end()


def finished(one, *given):
    one.meet(*given)
    return one.status()


def record(one):
    path = one.ledger / f"{one.path.name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def output(one, streams="1"):
    """Let the command run with its output as data; return its status and every byte."""
    reading, writing = os.pipe()
    one.meet(streams, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as f:
        data = f.read()
    return one.status(), data


# ---- Receipts -------------------------------------------------------------


def test_all_statuses_survive_the_supervisor_and_the_receipt():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        wakeups = program.listen()
        for status in range(256):
            job = program.Job(("/bin/sh", "-c", f"exit {status}"), "/", {})
            child = program.start_child(job, -1)
            code, _ = program.supervise(child, -1, wakeups, lambda: True, lambda: 0.0)
            os.write(writing, program.format_receipt(program.shell_status(code)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as f:
        assert [program.parse_receipt(line) for line in f] == list(range(256))
    os.waitpid(pid, 0)


@pytest.mark.parametrize("script, status", [
    ("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137),
    ("kill -HUP $$", 129),
])  # fmt: skip
def test_a_receipt_holds_the_shells_status(pane, script, status):
    assert finished(pane("/bin/sh", "-c", script)) == status


@pytest.mark.parametrize("argv, cwd, status", [
    (("/no/such",), "/", 127), (("/etc/passwd",), "/", 126), (("/bin/true",), "/no/such", 125),
])  # fmt: skip
def test_a_command_that_cannot_start_leaves_a_receipt_too(pane, argv, cwd, status):
    assert finished(pane(*argv, cwd=cwd)) == status


def test_a_script_that_names_no_interpreter_is_run_by_sh(pane, private):
    (private / "script").write_text("echo $0 $1\nexit 4\n")
    (private / "script").chmod(0o755)
    one = pane(f"{private}/script", "a")
    assert output(one) == (4, f"{private}/script a\n".encode())


@pytest.mark.parametrize("text", ["", "abc", "999", "-1", "7 8", "²", "\0"])
def test_a_malformed_receipt_is_no_status(private, text):
    (private / "receipt").write_text(text)
    with pytest.raises(program.Failure, match="malformed receipt"):
        program.read_receipt(os.open(private, os.O_RDONLY))


@pytest.mark.parametrize("make", [
    lambda path: os.symlink(f"{path}.good", path), os.mkdir, os.mkfifo,
])  # fmt: skip
def test_a_receipt_that_is_no_file_is_no_status(private, make):
    (private / "receipt.good").write_text("0\n")
    make(str(private / "receipt"))
    with pytest.raises(program.Failure):
        program.read_receipt(os.open(private, os.O_RDONLY))


def test_a_receipt_on_a_full_disk_is_still_published(pane):
    one = pane("/bin/sh", "-c", "exit 3")
    one.meet()
    one.status()
    armed, published = program.format_receipt(125), (one.path / "receipt").read_bytes()
    assert len(armed) == len(published)  # written over a block that is there already


def test_the_record_gets_its_end_and_the_handoff_goes(pane):
    one = pane("/bin/sh", "-c", "exit 5")
    assert finished(one) == 5
    one.conn.close()
    assert wait_until(lambda: record(one).get("status") == 5 and not one.path.exists())


# ---- The job --------------------------------------------------------------


def test_a_pane_without_its_job_runs_nothing(private):
    one = Pane("/bin/sh", "-c", f"touch {private}/ran")
    assert program.claim_job(one.folder, "caller")
    assert one.start().wait() == 0 and not (private / "ran").exists()
    one.end()


def test_a_job_is_claimed_once(private):
    one = Pane("/bin/true")
    assert [program.claim_job(one.folder, who) for who in ("pane", "caller")] == [True, False]
    one.start()
    one.end()


def test_a_command_does_not_start_when_its_caller_is_gone(pane, private):
    one = pane("/bin/sh", "-c", f"touch {private}/ran")
    one.conn = program.accept_pane(one.listener, one.terminal.pid)
    one.conn.close()
    assert one.terminal.wait() == 0 and not (private / "ran").exists()
    assert record(one)["status"] == 125


def test_arguments_and_environment_arrive_byte_for_byte(pane):
    code = "import os,sys;os.write(1,repr((sys.argv[1:],sorted(os.environb.items()))).encode())"
    args = ("", "a b", "two\nlines", "x;", ";", "$HOME", "#{pid}", "\udcff", "ü")
    env = {"EMPTY": "", "LINES2": "a\nb", "BYTES": "\udcfe", "BIG": "x" * 100_000, "PATH": "/bin"}
    status, data = output(pane(sys.executable, "-IS", "-c", code, *args, env=env))
    words, found = eval(data)
    assert status == 0 and tuple(words) == args
    given = {os.fsencode(k): os.fsencode(v) for k, v in env.items()}
    assert {k: v for k, v in found if k in given} == given


def test_a_job_is_private_and_gone_before_the_command_runs(private):
    one = Pane("/bin/sh", "-c", "ls -a")
    assert os.stat(one.path).st_mode & 0o777 == 0o700
    assert os.stat(one.path / "job").st_mode & 0o777 == 0o600
    one.start()
    assert finished(one) == 0 and not list(one.path.glob("job*"))
    one.end()


def test_the_terminals_own_variables_are_the_panes(pane):
    env = {"TERM": "other", "TMUX": "other", "COLUMNS": "1"}
    kept = program.Job(("/bin/true",), "/", env)
    assert kept.env  # what the caller leaves out is tested with a real tmux
    _, data = output(pane("/bin/sh", "-c", "echo $TERM $TMUX_PANE", env={"PATH": "/bin"}))
    assert data == b"xterm-256color %0\n"


# ---- Data -----------------------------------------------------------------


def test_every_byte_of_the_output_arrives_and_shows_on_the_screen(pane):
    one = pane("/bin/sh", "-c", "printf 'a\\000b\\377c\\n'; exit 4")
    assert output(one) == (4, b"a\0b\xffc\n")
    one.terminal.expect("a")


def test_a_slow_reader_gets_all_of_a_large_output(pane):
    reading, writing = os.pipe()
    one = pane("/bin/sh", "-c", "head -c 3000000 /dev/zero; echo end")
    one.meet("1", writing)
    os.close(writing)
    data = b""
    while part := os.read(reading, 100_000):
        data += part
        one.terminal.pump()
    assert one.status() == 0 and len(data) == 3_000_004 and data.endswith(b"end\n")


def test_a_command_waits_for_a_reader_that_does_not_read(pane):
    reading, writing = os.pipe()
    one = pane("/bin/sh", "-c", "head -c 1000000 /dev/zero")
    one.meet("1", writing)
    assert not one.told(0.5)
    os.close(writing)
    while os.read(reading, 100_000):
        one.terminal.pump()
    assert one.status() == 0


def test_a_reader_that_goes_ends_only_its_copy(pane):
    reading, writing = os.pipe()
    os.close(reading)
    one = pane("/bin/sh", "-c", "echo one; echo two; exit 6")
    one.meet("1", writing)
    os.close(writing)
    assert one.status() == 6
    one.terminal.expect("two")


def test_output_that_could_not_be_written_is_no_success(pane):
    full = os.open("/dev/full", os.O_WRONLY)
    one = pane("/bin/echo", "hello")
    one.meet("1", full)
    os.close(full)
    assert one.status() == 125
    assert b"No space left" in one.conn.recv(100)


def test_output_and_errors_stay_apart(pane, private):
    files = [os.open(private / name, os.O_RDWR | os.O_CREAT) for name in ("out", "err")]
    one = pane("/bin/sh", "-c", "echo out; echo err >&2")
    assert finished(one, "12", *files) == 0
    assert [os.pread(fd, 99, 0) for fd in files] == [b"out\n", b"err\n"]


def test_output_and_errors_of_one_pipe_keep_their_order(pane):
    script = "for i in 1 2 3 4 5; do echo $i; echo $i >&2; done"
    assert output(pane("/bin/sh", "-c", script), "b") == (0, b"1\n1\n2\n2\n3\n3\n4\n4\n5\n5\n")


@pytest.mark.parametrize("given, streams", [
    ("<&- >&- 2>&-", ""), ("</dev/null >/dev/null 2>&1", ""), ("</dev/null >/dev/null 2>err", "2"),
    ("</dev/zero >out 2>err", "012"), ("</etc/hostname >out 2>&1", "0b"),
])  # fmt: skip
def test_what_the_caller_gave_is_data_or_is_not(home, given, streams):
    code = "import sys; sys.path.append(sys.argv[1]); import persistent_sessions as m\n"
    code += "found = m.read_streams()\nwith open('streams', 'w') as f: f.write(found)"
    argv = [sys.executable, "-IS", "-B", "-c", code, os.path.dirname(program.__file__)]
    subprocess.run(["sh", "-c", f'"$@" {given}', "sh", *argv], cwd=home, check=True)
    assert (home / "streams").read_text() == streams


def test_input_is_passed_as_it_is(pane, private):
    (private / "in").write_bytes(b"first\nrest\xff\0")
    given = os.open(private / "in", os.O_RDONLY)
    one = pane("/bin/sh", "-c", 'read x; [ "$x" = first ]')
    assert finished(one, "0", given) == 0
    assert os.lseek(given, 0, os.SEEK_CUR) > 0  # the same open file, not a copy of it


def test_what_a_command_leaves_behind_does_not_hold_its_caller(pane):
    one = pane("/bin/sh", "-c", "(trap '' HUP; sleep 3; echo late) & echo now; exit 2")
    reading, writing = os.pipe()
    one.meet("1", writing)
    os.close(writing)
    began = time.monotonic()
    assert one.status() == 2 and time.monotonic() - began < 2
    with os.fdopen(reading, "rb") as f:
        assert f.read() == b"now\nlate\n"  # as without us: the pipe stays open as long


WORK = """(trap '' TERM; trap 'echo hung up >log; exit' HUP; : >ready
until [ -e go ]; do sleep 0.1; done; echo done >log) >/dev/null 2>&1 </dev/null &
until [ -e ready ]; do sleep 0.1; done
"""


def left_behind(one, private):
    """Wait for the end of a launch and its pane; return what became of WORK after it."""
    one.status()
    one.conn.close()
    one.terminal.wait()
    (private / "go").touch()
    assert wait_until((private / "log").exists)
    return wait_until((private / "log").read_text)


@pytest.mark.parametrize("shell", [["/bin/sh"], ["/bin/bash", "-m"]])
def test_what_a_command_leaves_behind_outlives_its_pane(pane, private, shell):
    one = pane(*shell, "-c", f"{WORK} exit 0", cwd=str(private))
    one.meet()
    assert left_behind(one, private) == "done\n"


def test_what_a_command_that_was_ended_leaves_behind_does_not(pane, private):
    one = pane("/bin/sh", "-c", f"{WORK} echo ready; read x", cwd=str(private))
    one.meet()
    one.terminal.expect("ready")
    os.kill(one.terminal.pid, signal.SIGTERM)
    assert left_behind(one, private) == "hung up\n"


# ---- The terminal and signals ---------------------------------------------


def test_ctrl_c_reaches_the_command_alone(pane):
    one = pane("/bin/sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 1; done")
    one.meet()
    one.terminal.expect("ready")
    one.terminal.send("\x03")
    assert one.status() == 9


def test_a_stopped_command_goes_on(pane):
    one = pane("/bin/sh", "-c", "echo ready; kill -STOP $$; exit 8")
    assert finished(one) == 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_supervisor_reaches_the_command(pane, number):
    one = pane("/bin/sh", "-c", "echo ready; exec sleep 100")
    one.meet()
    one.terminal.expect("ready")
    os.kill(one.terminal.pid, number)
    assert one.status() == 128 + number


def test_a_command_that_ignores_the_hang_up_is_killed(pane, private):
    script = f"trap '' HUP TERM; echo $$ >{private}/pid; echo ready; while :; do sleep 1; done"
    one = pane("/bin/sh", "-c", script)
    one.meet()
    one.terminal.expect("ready")
    one.terminal.hang_up()
    pid = int((private / "pid").read_text())
    assert wait_until(lambda: not alive(pid), 10)
    assert wait_until(lambda: record(one).get("status") == 137)


def test_a_command_that_was_cut_off_is_no_success(pane):
    one = pane("/bin/sh", "-c", "trap 'exit 0' HUP; echo ready; while :; do sleep 0.1; done")
    one.meet()
    one.terminal.expect("ready")
    one.terminal.hang_up()
    assert wait_until(lambda: record(one).get("status") == 129)


def test_a_killed_supervisor_leaves_no_receipt(pane):
    one = pane("/bin/sh", "-c", "echo ready; exec sleep 100")
    one.meet()
    one.terminal.expect("ready")
    os.kill(one.terminal.pid, signal.SIGKILL)
    assert one.told()
    with pytest.raises(program.Failure, match="without a receipt"):
        program.read_receipt(one.folder)


def test_a_handoff_that_was_deleted_is_a_loss_and_no_success(pane):
    one = pane("/bin/sh", "-c", "read x; exit 0")
    one.meet()
    gone = ["rm", "-rf", one.path]  # it is still at work in there
    assert wait_until(lambda: subprocess.run(gone).returncode == 0)
    one.terminal.send("\r")
    assert one.told()
    with pytest.raises(program.Failure, match="without a receipt"):
        program.read_receipt(one.folder)


@pytest.mark.parametrize("damage", ["rm -r {}", "rm {}/*", "rm {0}/*; mkdir {0}/receipt"])
def test_a_loss_is_told_while_what_the_command_left_still_writes(pane, damage):
    one = pane("/bin/sh", "-c", "(trap '' HUP; exec sleep 100) & read x; exit 0")
    reading, writing = os.pipe()
    one.meet("1", writing)
    os.close(writing)
    assert wait_until(lambda: record(one))
    subprocess.run(["sh", "-c", damage.format(one.path)])
    one.terminal.send("\r")
    assert one.told(5)
    with pytest.raises(program.Failure):
        program.read_receipt(one.folder)
    os.close(reading)


def test_no_supervisor_is_woken_while_its_command_runs(pane):
    one = pane("/bin/sh", "-c", "echo ready; exec sleep 100")
    one.meet()
    one.terminal.expect("ready")
    path = f"/proc/{one.terminal.pid}/status"
    assert wait_until(lambda: record(one))

    def woken():
        with open(path) as f:
            return [line for line in f if line.startswith("voluntary_ctxt")]

    assert wait_until(lambda: woken() == [woken(), time.sleep(0.6)][0], 10)
