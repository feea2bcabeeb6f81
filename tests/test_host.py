"""Launches that are executed directly, the ledger, and what is decided about launches.

Nothing here has a user manager: the hosted ones are in test_box_host.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from sessions import NAME, configure, declare, row, state
from support import SESSIONS, wait_until

import persistent_sessions as program

TRACE = {"PS_TRACE": "1"}


def ledger():
    return state() / "ledger"


def records():
    return [json.loads(p.read_text()) for p in ledger().glob("*.json")]


def write_record(launch_id, **fields):
    ledger().mkdir(parents=True, exist_ok=True)
    entry = program.Launch(launch_id)._replace(**fields)
    (ledger() / f"{launch_id}.json").write_text(program.format_launch(entry))


def listed(ps):
    return {h["id"]: h for h in json.loads(ps("list", "--json").stdout)["hosted"]}


def executable(path, text="#!/bin/sh\necho real $0 \"$@\"\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def shims(home):
    """Return a folder with a shim named agent, a link to this program."""
    folder = home / "shims"
    folder.mkdir()
    os.symlink(SESSIONS, folder / "agent")
    return folder


def call(*argv, path, **env):
    found = ":".join(map(str, path))
    return subprocess.run(
        argv, env={**os.environ, "PATH": found, **env}, capture_output=True, text=True, timeout=20
    )


# ---- Executed directly ----------------------------------------------------


@pytest.mark.parametrize("env, reason", [
    ({"AGENT_LEDGER_HUMAN": "1"}, "a person's own launch"),
    ({"AGENT_LEDGER_ID": "0123456789ab"}, "inside launch 0123456789ab"),
    ({"TMPJAIL_ACTIVE": "1"}, "inside a jail"),
    ({"TMUX": "/tmp/none,1,0"}, "inside tmux"),
    ({"AGENT_LEDGER_MUX": "0"}, "AGENT_LEDGER_MUX=0"),
    ({"NODE_CHANNEL_FD": "3"}, "it is given more descriptors than standard ones"),
    ({}, "no user manager"),
])  # fmt: skip
def test_each_exclusion_executes_directly_and_names_its_reason(ps, env, reason):
    done = ps("host", "--", "sh", "-c", "echo out; exit 7", env={**env, **TRACE})
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr == f"{NAME}: host: executed directly: {reason}\n"


def test_without_trace_nothing_is_said(ps):
    assert ps("host", "--", "true").stderr == ""


def test_without_tmux_it_is_executed_directly(ps, home):
    for name in ("sh", "echo"):
        os.symlink(shutil.which(name), home / name)
    done = ps("host", "--", "echo", "out", env={"PATH": str(home), **TRACE})
    assert done.stdout == "out\n" and "directly: no tmux" in done.stderr


def test_a_persons_own_launch_leaves_no_record(ps):
    ps("host", "--", "true", env={"AGENT_LEDGER_HUMAN": "1"})
    assert not ledger().exists()


def test_a_nested_launch_is_recorded_with_its_parent(ps):
    ps("host", "--", "true", env={"AGENT_LEDGER_ID": "0123456789ab"})
    (record,) = records()
    assert record["parent"] == "0123456789ab" and record["mux"] == {"kind": None}
    assert listed(ps)[record["id"]]["state"] == "ENDED"


def test_a_launch_inside_tmux_is_recorded_with_that_tmuxs_coordinates(ps, tmux):
    command = f"{sys.executable} -IS {SESSIONS} host -- sleep 100"
    tmux("new-session", "-d", "-s", "theirs", command)
    assert wait_until(lambda: records() and records()[0]["tmuxSession"])
    (record,) = records()
    assert record["mux"] == {"kind": "tmux"} and record["tmuxSession"] == "theirs"
    row = listed(ps)[record["id"]]
    assert (row["state"], row["attach"]) == (
        "RUNNING", f"tmux -S {record['tmuxSocket']} attach -t '=theirs'",
    )  # fmt: skip


def test_a_broken_ledger_never_stops_a_launch(ps, home):
    (home / "file").write_text("")
    done = ps("host", "--", "echo", "out", env={"AGENT_SESSIONS_DIR": f"{home}/file", **TRACE})
    assert done.stdout == "out\n" and "no ledger id" in done.stderr


def test_a_ledger_that_others_can_write_to_is_not_used(ps, private):
    folder = private / "open"
    folder.mkdir()
    folder.chmod(0o777)
    done = ps("host", "--", "true", env={"AGENT_SESSIONS_DIR": str(folder), **TRACE})
    assert "no ledger id" in done.stderr and not list(folder.iterdir())


def test_a_folder_that_was_removed_does_not_stop_a_launch(ps, home):
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    argv = ["sh", "-c", script, "sh", sys.executable, "-IS", SESSIONS, "host", "--", "echo", "out"]
    done = subprocess.run(argv, cwd=home, capture_output=True, text=True)
    assert done.stdout == "out\n"


def test_arguments_environment_and_descriptors_are_passed_untouched(ps, home):
    code = "import os,sys;print([sys.argv[1:],os.environb[b'ODD'],os.read(9,9)])"
    args = ["", "a\nb", ";", "\udcff"]
    script = 'exec 9<"$0"; exec "$@"'
    (home / "given").write_text("through")
    argv = ["sh", "-c", script, str(home / "given"), sys.executable, "-IS", SESSIONS, "host", "--"]
    done = subprocess.run(
        [*argv, sys.executable, "-IS", "-c", code, *args],
        env={**os.environ, "ODD": "\udcfe;"}, capture_output=True, text=True,
    )  # fmt: skip
    assert eval(done.stdout) == [args, b"\xfe;", b"through"]


@pytest.mark.parametrize("word", ["/dev/fd/63", "/proc/self/fd/63"])
def test_a_launch_whose_words_name_a_descriptor_keeps_it(ps, word):
    host = [sys.executable, "-IS", SESSIONS, "host", "--", "cat", word]
    code = "import os; r, w = os.pipe(); os.write(w, b'given'); os.close(w); os.dup2(r, 63); "
    code += f"os.execv({sys.executable!r}, {host!r})"
    argv = [sys.executable, "-IS", "-c", code]
    done = subprocess.run(argv, env={**os.environ, **TRACE}, capture_output=True, text=True)
    assert done.stdout == "given" and "given more descriptors" in done.stderr


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"LANG": "C"}])
def test_the_locale_is_the_callers_own(ps, shims, home, given):
    executable(home / "real" / "agent", "#!/bin/sh\nexec env")
    env = {"HOME": str(home), "PATH": f"{home}/real:/usr/bin:/bin", **given}
    for argv in ([*ps.argv, "host", "--", "env"], [str(shims / "agent")]):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        found = dict(line.split("=", 1) for line in done.stdout.splitlines())
        assert {k: v for k, v in found.items() if k[:2] in ("LC", "LA")} == given


def test_a_command_executed_directly_dies_of_a_closed_pipe_as_usual(ps):
    script = f"{sys.executable} -IS {SESSIONS} host -- yes | head -1"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=20)
    assert done.stdout == "y\n" and done.stderr == ""


@pytest.mark.parametrize("argv, status", [
    (["/no/such"], 127), (["nosuch"], 127), (["/etc/passwd"], 126), ([""], 127),
])  # fmt: skip
def test_a_command_that_cannot_be_executed_has_the_usual_status(ps, argv, status):
    done = ps("host", "--", *argv)
    assert done.returncode == status and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("text, status, words", [
    ("echo $0 $1\nexit 4\n", 4, "{} a\n"), ("", 0, ""), ("\x7fELF\0\n", 126, ""),
])  # fmt: skip
def test_a_script_that_names_no_interpreter_is_run_by_sh(ps, home, text, status, words):
    script = executable(home / "script", text)
    done = ps("host", "--", str(script), "a")
    assert (done.returncode, done.stdout) == (status, words.format(script))


def test_a_caller_that_ignores_the_end_of_its_children_changes_nothing(ps):
    done = subprocess.run(
        [*ps.argv, "list"], capture_output=True, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("argv", [
    ["host"], ["host", "true"], ["host", "--"], ["host", "--name", "a.b", "--", "true"],
    ["host", "--stdio", "none", "--", "true"], ["host", "--what", "--", "true"],
])  # fmt: skip
def test_a_usage_error_starts_nothing(ps, argv):
    done = ps(*argv)
    assert done.returncode == 2 and done.stderr.startswith(f"{NAME}: host: ")


def test_help_of_host_is_help(ps):
    assert "usage:" in ps("host", "--help").stdout


# ---- The shim -------------------------------------------------------------


def test_a_shim_runs_the_runtime_it_is_named_after(shims, home):
    real = executable(home / "real" / "agent")
    done = call(str(shims / "agent"), "-p", "a b", path=[shims, real.parent, "/usr/bin"])
    assert (done.returncode, done.stdout) == (0, f"real {real} -p a b\n")


def test_a_shim_without_its_runtime_is_not_found(shims):
    done = call(str(shims / "agent"), path=[shims, "/usr/bin"])
    assert done.returncode == 127 and "agent: command not found" in done.stderr


def test_a_shim_never_runs_itself(shims, home):
    copy = home / "copy" / "persistent_sessions.py"
    copy.parent.mkdir()
    shutil.copy(SESSIONS, copy)
    os.symlink(shims, home / "again")
    os.symlink(copy, copy.parent / "agent")
    real = executable(home / "real" / "agent")
    path = [shims, home / "again", shims, copy.parent, "", real.parent, "/usr/bin"]
    assert call(str(shims / "agent"), path=path).stdout == f"real {real}\n"


def test_a_shims_own_options_are_its_runtimes(shims, home):
    real = executable(home / "real" / "agent")
    done = call(str(shims / "agent"), "--version", path=[shims, real.parent, "/usr/bin"])
    assert done.stdout == f"real {real} --version\n"


def test_install_makes_a_shim_and_uninstall_removes_it(ps, home):
    done = ps("install", "--shim", "agent")
    link = home / ".local/lib" / NAME / "shims" / "agent"
    assert link.is_symlink() and 'export PATH="$HOME/.local/lib' in done.stderr
    real = executable(home / "real" / "agent")
    run = call(str(link), "x", path=[link.parent, real.parent, "/usr/bin"])
    assert run.stdout == f"real {real} x\n"
    ps("uninstall")
    assert not link.parent.parent.exists()


# ---- The ledger -----------------------------------------------------------


@pytest.mark.parametrize("ended, alive, watched, expected", [
    (0, False, False, "LOST"), (0, False, True, "LOST"), (0, True, False, "DETACHED-ALIVE"),
    (0, True, True, "RUNNING"), (1, False, False, "ENDED"), (1, True, True, "ENDED"),
])  # fmt: skip
def test_the_state_of_a_launch_follows_from_three_facts(ended, alive, watched, expected):
    entry = program.Launch("a", ended=float(ended))
    assert program.classify_hosted(entry, alive, watched) == expected


def test_a_launch_of_an_earlier_boot_without_an_end_is_lost(ps):
    pid, start = os.getpid(), program.process_start(os.getpid())
    write_record("0123456789ab", boot="another", caller=pid, caller_start=start)
    assert listed(ps)["0123456789ab"]["state"] == "LOST"
    write_record("0123456789ab", boot=program.boot_id(), caller=pid, caller_start=start)
    assert listed(ps)["0123456789ab"]["state"] == "RUNNING"


def test_a_record_survives_what_a_name_or_argument_may_hold():
    words = ("", "\udcff", 'q"\\', "\n\0ü")
    entry = program.Launch("a", "n", words, "/d", 1.5, status=7, mux="tmux")
    assert program.parse_launch(program.format_launch(entry)) == entry
    assert json.loads(program.format_launch(entry))["argv"][1] == "\udcff"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 7}', "\0\0", '{"argv": "x"}'])
def test_a_torn_record_is_none(text):
    assert program.parse_launch(text) is None


def test_a_torn_record_does_not_stop_list(ps):
    write_record("0123456789ab", ended=time.time(), status=7, argv=("x",))
    (ledger() / "ffffffffffff.json").write_text('{"id": "ffff')
    done = ps("list")
    assert done.returncode == 0 and "0123456789ab  ENDED 7" in done.stdout


def test_a_unique_beginning_of_an_id_is_enough(ps):
    for launch_id in ("aaaa00000000", "aabb00000000"):
        write_record(launch_id, ended=1.0, status=3)
    assert "aabb00000000: ENDED 3" in ps("logs", "aab").stdout
    done = ps("logs", "aa")
    assert done.returncode == 2 and "is not one launch" in done.stderr


def test_the_printed_session_name_is_enough_where_one_launch_has_it(ps):
    write_record("aaaa00000000", ended=1.0, status=3, session="tool")
    assert "aaaa00000000: ENDED 3" in ps("logs", "tool").stdout
    me, start = os.getpid(), program.process_start(os.getpid())
    live = {"caller": me, "caller_start": start, "boot": program.boot_id()}
    write_record("bbbb00000000", session="tool", **live)
    assert "bbbb00000000: RUNNING" in ps("logs", "tool").stdout
    write_record("bbbb00000000", ended=1.0, status=4, session="tool")
    done = ps("logs", "tool")
    assert done.returncode == 2 and "is not one launch" in done.stderr


def test_commands_refuse_what_is_neither_session_nor_launch(ps):
    for verb in ("logs", "capture", "stop"):
        done = ps(verb, "nothing")
        assert done.returncode == 1 and "no session or launch 'nothing'" in done.stderr


def test_old_records_go_with_their_residue_and_young_ones_stay(ps):
    configure(host={"keep_days": 1})
    for launch_id, days in (("aaaaaaaaaaaa", 2), ("bbbbbbbbbbbb", 0)):
        write_record(launch_id, ended=1.0, status=1)
        (ledger() / f"{launch_id}.screen").write_text("last")
        (ledger() / "spawn" / launch_id).mkdir(parents=True)
        for path in (*ledger().glob(f"{launch_id}.*"), ledger() / "spawn" / launch_id):
            os.utime(path, (time.time() - days * 86400,) * 2)
    assert set(listed(ps)) == {"bbbbbbbbbbbb"}
    assert not list(ledger().glob("**/aaaaaaaaaaaa*")) and list(ledger().glob("bbbb*.screen"))


def test_a_sweep_touches_nothing_that_is_not_a_launchs(ps, private):
    configure(host={"keep_days": 0})
    folder = private / "r" / NAME
    folder.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "aaaaaaaaaaaa"))  # another ledger's launch lives here
    listener.listen()
    for name in ("bbbbbbbbbbbb", "session-name"):
        (folder / name).write_text("")
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    listed(ps)
    assert sorted(p.name for p in folder.iterdir()) == ["aaaaaaaaaaaa", "session-name"]


def test_a_ledger_that_cannot_be_read_does_not_hide_the_sessions(ps, home):
    declare(row("alpha"))
    (home / "file").write_text("")
    done = ps("list", env={"AGENT_SESSIONS_DIR": f"{home}/file"})
    assert done.returncode == 1 and "alpha" in done.stdout and "Not a directory" in done.stderr


def test_a_live_launch_outlives_its_keep_days(ps):
    configure(host={"keep_days": 0})
    running = ps.start("host", "--", "sleep", "100")
    assert wait_until(records)
    (path,) = ledger().glob("*.json")
    os.utime(path, (1, 1))
    assert [h["state"] for h in listed(ps).values()] == ["RUNNING"]
    assert running.poll() is None


def test_stop_ends_a_launch_that_was_executed_directly(ps):
    running = ps.start("host", "--", "sleep", "100")
    assert wait_until(records)
    assert ps("stop", records()[0]["id"][:6]).returncode == 0
    assert running.wait(10) == -15


CHILDREN = """import os, signal
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
while True:
    for pid in [os.fork() or os._exit(0) for _ in range(100)]:
        os.waitpid(pid, 0)
"""


def test_a_command_that_ends_while_it_is_being_stopped_is_no_error(ps, monkeypatch):
    for name in ("TERM_GRACE", "LOST_GRACE", "SCOPE_STOP"):
        monkeypatch.setattr(program, name, 0.01)
    argv = [sys.executable, "-IS", "-c", CHILDREN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as pane:
        assert pane.stdout.readline() == b"ready\n"
        start, boot = program.process_start(pane.pid), program.boot_id()
        entry = program.Launch("a", pane=pane.pid, pane_start=start, boot=boot)
        paths = program.Paths.from_env(os.environ)
        try:  # its children come and go all the time; the one that outlived its list was an error
            for _ in range(30):
                program.stop_hosted(paths, entry)
        finally:
            pane.kill()


def test_capture_and_stop_know_sessions_too(ps, claude):
    declare(row("alpha"))
    ps("start")
    assert "claude" in ps("capture", "alpha").stdout.lower()
    assert ps("stop", "alpha").returncode == 0
    assert json.loads(ps("list", "--json").stdout)["sessions"][0]["state"] == "RETIRED"
    assert "rc=143" in ps("logs", "alpha").stdout


# ---- What tmux is told ----------------------------------------------------


def test_a_server_adds_no_key_but_the_one_that_detaches():
    words = program.server_words("s", ("80", "24"), "C-]", "screen", False, ["cmd", "arg"])
    text = " ".join(words)
    assert "prefix None" in text and "unbind-key -a -T root" in text and "status off" in text
    assert text.endswith("-x 80 -y 24 cmd arg ; bind-key -T root C-] detach-client")


@pytest.mark.parametrize("word, name", [
    ("claude", "claude"), ("a.b:c", "a_b_c"), ("-x", "_-x"), ("", "_"),
])  # fmt: skip
def test_a_launchs_session_has_a_name_that_tmux_keeps(word, name):
    assert program.choose_hosted_name(word) == name and not program.classify_name(name)


def test_a_job_file_survives_an_environment_without_utf_8(private):
    job = program.Job(("a", ""), "/d", {"K": "\udcff\udc80é"}, "/p")
    program.write_job(str(private / "job"), job)
    assert program.read_job(str(private / "job")) == job
