"""Hosted launches on a machine with a user manager: real tmux, scopes, terminals, losses."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import tempfile
import time

import boxlib
import pytest
from support import ABSENT, SESSIONS, wait_until

pytestmark = [pytest.mark.box, pytest.mark.tmux, pytest.mark.limit(60)]

HOME = "/home/ann"
BIN = f"{HOME}/.local/bin"
LIB = f"{HOME}/.local/lib/persistent-sessions"
LEDGER = f"{HOME}/.local/state/persistent-sessions/ledger"
KEYS = """import os, sys, termios, tty, signal
tty.setraw(0)
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"<size %dx%d>" % os.get_terminal_size()))
os.write(1, sys.argv[1].encode().decode("unicode_escape").encode() + b"<ready>")
while True:
    data = os.read(0, 1000)
    os.write(1, b"<" + data.hex().encode() + b">")
    if data == b"q":
        sys.exit(7)
"""


class Ann:
    """The person whose launches these are."""

    def __init__(self, box):
        self.box = box

    def sh(self, script, check=True, **how):
        env = {"PATH": f"{BIN}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        return self.box.user("ann", "sh", "-c", script, env=env, check=check, **how)

    def ps(self, *args, **how):
        return self.sh("persistent-sessions " + shlex.join(args), **how)

    def begin(self, name, script, before="", options=""):
        """Let a caller without a terminal host a script, and go on; `status` waits for it."""
        host = f"persistent-sessions host --name {name} {options} -- sh -c {shlex.quote(script)}"
        caller = f"{before} {host} >{name}.out 2>{name}.err </dev/null; echo $? >{name}.rc"
        self.sh(f"rm -f {name}.*; setsid sh -c {shlex.quote(caller)} >&- 2>&- <&- &")

    def launch(self, name):
        """Return the record of a launch once its tmux session is there."""
        found = wait_until(lambda: [h for h in self.hosted(name) if h["tmuxSession"]])
        assert found, self.sh(f"cat {name}.err; persistent-sessions list").stdout
        return found[0]

    def hosted(self, name=""):
        rows = json.loads(self.ps("list", "--json").stdout)["hosted"]
        return [h for h in rows if name in ("", h["name"])]

    def state(self, name):
        return self.hosted(name)[0]["state"]

    def status(self, name, timeout=15):
        text = wait_until(lambda: self.sh(f"cat {name}.rc", check=False).stdout.strip(), timeout)
        assert text, f"{name} did not return in {timeout} s"
        return int(text)


@pytest.fixture
def small_disk(ann):
    """The ledger on a disk of one megabyte."""
    ann.sh(f"mkdir -p {LEDGER}")
    ann.box.root("mount", "-t", "tmpfs", "-o", "size=1m,uid=1001,mode=700", "small", LEDGER)
    yield LEDGER
    ann.box.root("umount", "-l", LEDGER)


@contextlib.contextmanager
def hung_manager(ann):
    """Have ann's user manager answer nobody."""
    pid = ann.sh("pgrep -u ann -x systemd").stdout.strip()
    ann.box.root("kill", "-STOP", pid)
    try:
        yield
    finally:
        ann.box.root("kill", "-CONT", pid)


@pytest.fixture(scope="module")
def machine_of_ann(box_reason):
    if box_reason:
        pytest.skip(f"{ABSENT}a box ({box_reason})")
    folder = tempfile.mkdtemp(prefix="psbox", dir="/var/tmp")
    box = boxlib.Box(folder)
    try:
        box.boot()
        box.add_user("ann")
        box.put_program("ann", SESSIONS, f"{BIN}/persistent-sessions")
        box.write(f"{HOME}/keys.py", KEYS, "ann")
        link = f"ln -s {BIN}/persistent-sessions {LIB}/persistent_sessions.py"
        box.user("ann", "sh", "-c", f"mkdir -p {LIB} && {link}")
        yield box
    finally:
        box.remove()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def ann(machine_of_ann):
    person = Ann(machine_of_ann)
    yield person
    for unit in {h["unit"] for h in person.hosted() if h["attach"]}:
        person.sh(f"systemctl --user kill -s KILL {unit}", check=False)


# ---- Statuses and data ----------------------------------------------------


def test_the_caller_exits_with_the_commands_status(ann):
    for script, status in (("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143),
                           ("kill -KILL $$", 137)):  # fmt: skip
        assert ann.ps("host", "--", "sh", "-c", script, check=False).returncode == status
    for word in ("nosuch", ""):
        done = ann.ps("host", "--", word, check=False)
        assert done.returncode == 127 and f"{word}: " in done.stderr
    assert ann.sh("mkdir -p shut; cd shut; chmod 0 .; persistent-sessions host -- id").stdout


def test_nothing_is_left_over_but_the_record(ann):
    ann.ps("host", "--name", "left", "--", "true")
    assert wait_until(lambda: ann.state("left") == "ENDED")
    left = f"""ls {LEDGER}/spawn $XDG_RUNTIME_DIR/persistent-sessions
    systemctl --user list-units -q '*host*'"""
    assert wait_until(lambda: len(ann.sh(left).stdout.split()) == 2)  # the two folders' names


def test_a_pipeline_through_the_shim_keeps_every_byte(ann):
    ann.sh("persistent-sessions install --shim agent; mkdir -p real", check=False)
    ann.box.write(f"{HOME}/real/agent", '#!/bin/sh\ncat; echo "$@" >&2; exit 5\n', "ann", "755")
    script = f"""PATH={LIB}/shims:$HOME/real:$PATH; head -c 300000 /dev/urandom >given
    agent -p 'a b' <given >got 2>said; echo $?; cmp given got && cat said
    persistent-sessions list"""
    out = ann.sh(script, check=False).stdout
    assert out.startswith("5\n-p a b\n") and "agent -p a b" in out


def test_a_caller_in_cron_has_no_runtime_folder_and_is_hosted_all_the_same(ann):
    host = "persistent-sessions host --name cron -- sh -c 'echo mail'"
    assert ann.sh(f"env -i HOME=$HOME PATH=$PATH {host} | cat").stdout == "mail\n"
    assert ann.hosted("cron")[0]["unit"]


@pytest.mark.parametrize("given", ["", "LC_CTYPE=C\n", "LANG=C\n"])
def test_a_hosted_command_has_its_callers_locale(ann, given):
    host = "persistent-sessions host --name locale -- env | grep -E '^(LC|LANG)'"
    done = ann.sh(f"env -i HOME=$HOME PATH=$PATH {given.strip()} {host}", check=False)
    assert done.stdout == given and ann.hosted("locale")[0]["unit"]


def test_closed_descriptors_and_dev_null_become_the_panes_terminal(ann):
    script = "test -t 0 && test -t 1 && test -t 2"
    for given in ("</dev/null >/dev/null 2>&1", "<&- >&- 2>&-"):
        assert ann.sh(f"persistent-sessions host -- sh -c '{script}' {given}").returncode == 0
    assert ann.sh(f"echo x | persistent-sessions host --stdio pane -- sh -c '{script}' | cat")


def test_argv_and_environment_pass_tmux_unchanged(ann):
    code = "import os,sys;e=os.environ;print([sys.argv[1:],e['ODD'],len(e['BIG']),'LINES' in e])"
    words = ["", "a\nb", "x;", ";", "#{pid}", "$HOME", "ü"]
    big = "export BIG=$(head -c 100000 /dev/zero | tr '\\0' x) ODD='a;\n#{x}' LINES=1;"
    python = shlex.join(["python3", "-c", code, *words])
    out = ann.sh(f"{big} persistent-sessions host -- {python}")
    assert eval(out.stdout) == [words, "a;\n#{x}", 100000, False]


def test_secrets_are_in_no_command_line(ann):
    ann.sh("echo zzz-token >token")
    ann.begin("secret", "exec sleep 100", before="FAKE_TOKEN=$(cat token)")
    pid = ann.launch("secret")["panePid"]
    assert ann.sh("cat /proc/[0-9]*/cmdline | grep -caf token", check=False).stdout == "0\n"
    assert "zzz" in ann.sh(f"cat /proc/$(pgrep -P {pid})/environ").stdout


# ---- Where it runs --------------------------------------------------------


def test_a_launch_has_a_tmux_and_a_scope_of_its_own(ann):
    ann.begin("own", "echo marker; exec sleep 100")
    one = ann.launch("own")
    assert one["mux"] == {"kind": "tmux"} and one["state"] == "RUNNING"
    cgroup = ann.box.read(f"/proc/{one['panePid']}/cgroup")
    assert cgroup.strip().endswith(f"/agent.slice/{one['unit']}")
    has = f"tmux -S {one['tmuxSocket']} has-session -t =own"
    assert ann.sh(has).returncode == 0
    assert one["attach"] == f"persistent-sessions attach {one['id']}"


def test_the_screen_can_be_read_while_nobody_is_attached(ann):
    ann.begin("screen", "echo marker; exec sleep 100")
    one = ann.launch("screen")
    assert wait_until(lambda: "marker" in ann.ps("capture", one["id"][:6]).stdout)


def test_a_launch_holds_none_of_its_callers_pipes_once_the_caller_is_gone(ann):
    command = "sh -c 'sleep 20 </dev/null >/dev/null 2>&1 & echo now'"
    done = ann.sh(f"x=$(persistent-sessions host -- {command}); echo $x", timeout=10)
    assert done.stdout == "now\n"


def test_a_launch_survives_the_stop_of_its_callers_service(ann):
    host = f"{BIN}/persistent-sessions host --name served -- sleep 100"
    ann.sh(f"systemd-run --user --unit=caller {host}")
    one = ann.launch("served")
    ann.sh("systemctl --user stop caller")
    assert ann.state("served") == "DETACHED-ALIVE"
    assert ann.box.exists(f"/proc/{one['panePid']}")


def test_a_launch_inside_a_hosted_one_is_not_wrapped_twice(ann):
    inner = "persistent-sessions host --name inner -- sh -c 'exit 3'"
    assert ann.ps("host", "--name", "outer", "--", "sh", "-c", inner, check=False).returncode == 3
    (outer,), (nested,) = ann.hosted("outer"), ann.hosted("inner")
    assert nested["parent"] == outer["id"] and nested["unit"] == ""


def test_a_folder_that_only_its_caller_stands_in_is_run_in_directly(ann):
    """As after `cd /root; sudo -u ann`: a pane could not come there by its path."""
    ann.box.root("mkdir", "-p", "-m", "700", "/closed/in")
    uid = ann.sh("id -u").stdout.strip()
    how = f"HOME={HOME} XDG_RUNTIME_DIR=/run/user/{uid} {BIN}/persistent-sessions host"
    caller = f"cd /closed/in; exec setpriv --reuid={uid} --clear-groups env {how}"
    done = ann.box.root("sh", "-c", f"{caller} -- sh -c 'exit 3' </dev/null", check=False)
    assert done.returncode == 3, done.stderr


def test_without_a_user_manager_a_launch_is_executed_directly(ann):
    ann.box.add_user("carl", linger=False)
    ann.box.put_program("carl", SESSIONS, "/home/carl/ps")
    done = ann.box.user("carl", "/home/carl/ps", "host", "--", "sh", "-c", "echo out; exit 7",
                        env={"PS_TRACE": "1"}, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "out\n") and "no user manager" in done.stderr


# ---- Losses ---------------------------------------------------------------


def test_a_killed_caller_changes_nothing_and_the_end_is_recorded(ann):
    ann.begin("orphan", "echo marker; read x; exit 9")
    one = ann.launch("orphan")
    ann.sh(f"kill -9 {one['callerPid']}")
    assert ann.status("orphan") == 137
    assert ann.state("orphan") == "DETACHED-ALIVE"
    assert "marker" in ann.ps("capture", one["id"]).stdout
    ann.sh(f"tmux -S {one['tmuxSocket']} send-keys -t =orphan: Enter")
    assert wait_until(lambda: ann.hosted("orphan")[0]["status"] == 9)


@pytest.mark.parametrize("name, loss", [
    ("session", "tmux -S $socket kill-session -t =session"),
    ("server", "tmux -S $socket kill-server"),
    ("server9", "kill -9 $server"),
    ("pane9", "kill -9 $pane"),
    ("scope9", "systemctl --user kill -s KILL $unit"),
    ("stopped", "systemctl --user stop $unit"),
])  # fmt: skip
def test_every_loss_ends_in_a_failure_and_leaves_nothing_running(ann, name, loss):
    ann.begin(name, f"trap '' HUP; sleep 1000 & echo $$ $! >{name}.pid; while :; do sleep 1; done")
    one = ann.launch(name)
    server = ann.sh(f"tmux -S {one['tmuxSocket']} display -p '#{{pid}}'").stdout.strip()
    place = f"socket={one['tmuxSocket']} server={server} pane={one['panePid']} unit={one['unit']}"
    ann.sh(f"{place}; {loss}")
    began = time.monotonic()
    status = ann.status(name, 10)
    said = ann.sh(f"cat {name}.err").stdout
    assert status in (125, 129, 137, 143), said
    assert status != 125 or (one["id"] in said and f"session '{name}'" in said)
    left = f"for i in $(cat {name}.pid); do ! [ -e /proc/$i ] || exit 1; done"
    limit = 10 - (time.monotonic() - began)
    assert wait_until(lambda: ann.sh(left, check=False).returncode == 0, limit)
    assert ann.state(name) == ("LOST" if ann.hosted(name)[0]["status"] is None else "ENDED")


@pytest.mark.parametrize("mode", ["700", "500"])
def test_a_loss_is_told_also_when_nothing_can_be_cleared_away(ann, mode):
    ann.begin("hindered", "exec sleep 100")
    one = ann.launch("hindered")
    folder = ann.sh("echo $XDG_RUNTIME_DIR/persistent-sessions").stdout.strip()
    with hung_manager(ann):
        ann.sh(f"chmod {mode} {folder}; kill -9 {one['panePid']}")
        status = ann.status("hindered")
    ann.sh(f"chmod 700 {folder}")
    assert status == 125 and one["id"] in ann.sh("cat hindered.err").stdout
    assert not ann.box.exists(f"{LEDGER}/spawn/{one['id']}")


def test_a_deleted_handoff_is_a_loss_and_no_success(ann):
    ann.begin("handoff", "read x; exit 0")
    one = ann.launch("handoff")
    ann.sh(f"rm -r {LEDGER}/spawn/{one['id']}; tmux -S {one['tmuxSocket']} send-keys Enter")
    assert ann.status("handoff") == 125


def test_a_disk_that_is_full_when_the_command_ends_changes_no_status(ann, small_disk):
    ann.begin("full", "while ! [ -e go ]; do sleep 0.1; done; exit 6")
    ann.launch("full")
    filled = ann.sh(f"cat /dev/zero >{small_disk}/filler", check=False)
    assert "No space left" in filled.stderr
    ann.sh("touch go")
    assert ann.status("full") == 6
    ann.sh(f"rm go {small_disk}/filler")
    assert ann.sh("cat full.err").stdout == ""
    assert (ann.state("full"), ann.hosted("full")[0]["status"]) == ("ENDED", 6)


def test_a_runtime_folder_that_is_gone_changes_no_status(ann):
    ann.begin("runtime", "while ! [ -e go ]; do sleep 0.1; done; exit 6")
    one = ann.launch("runtime")
    ann.sh("rm -r $XDG_RUNTIME_DIR/persistent-sessions")
    assert ann.state("runtime") == "RUNNING"
    assert ann.sh(f"persistent-sessions capture {one['id']}; touch go").returncode == 0
    assert ann.status("runtime") == 6
    ann.sh("rm go")


def test_a_tmux_that_says_nothing_hides_no_other_launch(ann):
    for name in ("good", "hung"):
        ann.begin(name, "echo marker; exec sleep 200")
    good, hung = ann.launch("good"), ann.launch("hung")
    server = ann.sh(f"tmux -S {hung['tmuxSocket']} display -p '#{{pid}}'").stdout.strip()
    ann.sh(f"kill -9 {good['callerPid']} {hung['callerPid']}; kill -STOP {server}")
    began = time.monotonic()
    listed = ann.ps("list", check=False)
    states = dict(line.split("  ")[:2] for line in listed.stdout.splitlines() if "marker" in line)
    assert listed.returncode == 1 and states[good["id"]] == "DETACHED-ALIVE"
    assert states[hung["id"]].startswith("DETACHED-ALIVE: tmux list-sessions: no answer")
    assert "marker" in ann.ps("capture", "good").stdout
    assert "no answer" in ann.ps("capture", "hung", check=False).stderr
    assert "no answer" in ann.ps("attach", "hung", check=False).stderr
    ann.ps("stop", "hung")
    assert wait_until(lambda: ann.state("hung") == "ENDED")
    assert time.monotonic() - began < 40
    assert ann.hosted("hung")[0]["status"] == 143
    ann.ps("stop", "good")


@pytest.mark.parametrize("damage", ["rm {}", "echo '{{' >{}", "sed -i 's/\"boot\": \"./&0/' {}"])
def test_a_live_launch_is_found_again_without_its_record(ann, damage):
    ann.begin("rescue", "echo marker; exec sleep 100")
    one = ann.launch("rescue")
    ann.sh(damage.format(f"{LEDGER}/{one['id']}.json"))
    found = next(h for h in ann.hosted() if h["id"] == one["id"])
    assert found["state"] in ("RUNNING", "DETACHED-ALIVE") and found["attach"]
    assert found["unit"] == one["unit"] and found["tmuxSocket"] == one["tmuxSocket"]
    assert "marker" in ann.ps("capture", one["id"]).stdout
    ann.ps("stop", one["id"])


@pytest.mark.parametrize("wrapper, status", [
    ("exit 1", 4),  # tmux refuses
    ('/usr/bin/tmux "$@" >/dev/null; exit 1', 4),  # tmux took it and does not say so
    ('/usr/bin/tmux "$@"; /usr/bin/tmux -S "$3" kill-server; exit 1', None),  # took it and went
])  # fmt: skip
def test_a_command_runs_once_whatever_tmux_answers(ann, wrapper, status):
    ann.box.write(f"{HOME}/odd/tmux", f"#!/bin/sh\n{wrapper}\n", "ann", "755")
    host = "persistent-sessions host -- sh -c 'echo x >>ran; exit 4'"
    done = ann.sh(f"rm -f ran; PATH=$HOME/odd:$PATH {host}", check=False)
    ran = ann.sh("cat ran", check=False).stdout
    assert ran in ("x\n", "") if status is None else ran == "x\n"
    assert done.returncode == status or (status is None and done.returncode != 0)


def test_a_command_runs_at_once_when_the_user_manager_hangs(ann):
    ann.box.write(f"{HOME}/hung/systemd-run", "#!/bin/sh\nexit 1\n", "ann", "755")
    host = "persistent-sessions host --name hung -- sh -c 'echo ran; exit 4'"
    with hung_manager(ann):
        done = ann.sh(f"PATH=$HOME/hung:$PATH {host}", check=False)
    assert (done.returncode, done.stdout) == (4, "ran\n"), done.stderr
    assert not ann.box.exists(f"{LEDGER}/spawn/{ann.hosted('hung')[0]['id']}")


# ---- Admission ------------------------------------------------------------


def test_fifty_launches_at_once_never_exceed_the_cap(ann):
    config = f"{HOME}/.config/persistent-sessions/config.json"
    ann.box.write(config, '{"host": {"max_sessions": 4}}', "ann")
    host = "persistent-sessions host -- sh -c 'echo ran >>$HOME/all; read x' >&- 2>err.$i <&-"
    loop = f"rm -f all rc; for i in $(seq 50); do (setsid {host}; echo $? >>rc) & done"
    ann.sh(f"setsid sh -c {shlex.quote(loop)} >&- 2>&- <&- &")
    assert wait_until(lambda: ann.sh("grep -c 75 rc", check=False).stdout.strip() == "46", 50)
    count = "sort -u rc; wc -l <all; cat err.* | grep -c '4 launches run, 4 may'"
    assert ann.sh(count).stdout.split() == ["75", "4", "46"]
    live = [h for h in ann.hosted() if h["state"] == "RUNNING"]
    ann.sh(f"kill -9 {live[0]['panePid']}")  # a crash gives its place back
    assert wait_until(lambda: ann.ps("host", "--", "true", check=False).returncode == 0)
    ann.sh(f"rm {config}")


def test_what_an_ended_launch_left_behind_has_no_place_and_can_be_stopped(ann):
    config = f"{HOME}/.config/persistent-sessions/config.json"
    ann.box.write(config, '{"host": {"max_sessions": 1}}', "ann")
    ann.begin("daemon", "setsid sleep 1000 & echo $! >daemon.pid")
    assert ann.status("daemon") == 0 and wait_until(lambda: ann.state("daemon") == "ENDED")
    assert ann.ps("host", "--", "true", check=False).returncode == 0
    assert "stopped" in ann.ps("stop", "daemon").stderr
    assert wait_until(lambda: ann.sh("kill -0 $(cat daemon.pid)", check=False).returncode)
    ann.sh(f"rm {config}")


# ---- Stopping -------------------------------------------------------------


def test_stop_ends_a_launch_and_its_caller_gets_the_status(ann):
    ann.begin("gentle", "exec sleep 100")
    ann.ps("stop", ann.launch("gentle")["id"])
    assert ann.status("gentle") == 143 and ann.state("gentle") == "ENDED"


def test_stop_kills_what_ignores_it_and_the_receipt_says_so(ann):
    ann.begin("stubborn", "trap '' HUP TERM INT; while :; do sleep 1; done")
    ann.ps("stop", ann.launch("stubborn")["id"])
    assert ann.status("stubborn") == 137 and ann.state("stubborn") == "ENDED"


def test_logs_keep_the_last_screen_of_what_failed(ann):
    ann.ps("host", "--name", "failed", "--", "sh", "-c", "echo the reason; exit 3", check=False)
    assert wait_until(lambda: ann.state("failed") == "ENDED")
    text = ann.ps("logs", "failed").stdout
    assert "ENDED 3" in text and "the reason" in text


# ---- Terminals ------------------------------------------------------------


@pytest.fixture
def screen(ann):
    """Run a script of ann's on a terminal of the box."""
    made = []

    def make(script, size=(24, 80), term="xterm-256color"):
        env = [f"PATH={BIN}:/usr/bin:/bin", f"TERM={term}", "LANG=C.UTF-8"]
        made.append(ann.box.terminal("ann", "env", *env, "sh", "-c", script, size=size))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_with_a_terminal_the_caller_attaches_and_returns_the_status(ann, screen):
    command = "sh -c 'echo shown; read x; exit 7'"
    one = screen(f"persistent-sessions host --name watched -- {command}; echo rc=$?")
    one.expect("shown")
    handoff = f"{LEDGER}/spawn/{ann.launch('watched')['id']}"
    assert ann.sh(f"ls -d {handoff}").stdout
    one.send("\r")
    one.expect("rc=7")
    assert ann.sh(f"ls -d {handoff}", check=False).stdout == ""


def test_after_a_detach_the_caller_says_how_to_come_back(ann, screen):
    one = screen("persistent-sessions host --name away -- sh -c 'echo shown; read x'; echo rc=$?")
    one.expect("shown")
    one.send("\x1d")
    said = one.expect("rc=0")
    entry = ann.launch("away")
    assert f"persistent-sessions attach {entry['id']}" in said
    assert ann.state("away") == "DETACHED-ALIVE"
    again = screen(f"persistent-sessions attach {entry['id'][:5]}")
    again.expect("shown")
    assert wait_until(lambda: ann.state("away") == "RUNNING")
    again.send("\r")
    assert wait_until(lambda: ann.state("away") == "ENDED")
    handoff = f"{LEDGER}/spawn/{entry['id']}"
    assert wait_until(lambda: ann.sh(f"ls -d {handoff}", check=False).stdout == "")


@pytest.mark.parametrize("term", ["dumb", "''"])
def test_a_terminal_that_cannot_be_drawn_on_is_treated_as_none(screen, term):
    one = screen(f"TERM={term} persistent-sessions host -- sh -c 'exit 7'; echo rc=$?")
    one.expect("rc=7")


def test_a_server_lost_while_attached_is_no_success(ann, screen):
    command = "sh -c 'echo shown; exec sleep 100'"
    one = screen(f"persistent-sessions host --name gone -- {command}; echo rc=$?")
    one.expect("shown")
    ann.sh(f"kill -9 $(tmux -S {ann.launch('gone')['tmuxSocket']} display -p '#{{pid}}')")
    one.expect("rc=1")
    one.wait()
    assert int(one.text().rpartition("rc=")[2]) in (125, 129), one.text()


def test_keys_paste_mouse_and_resize_reach_the_program_unchanged(screen):
    modes = r"\x1b[?1000h\x1b[?1006h\x1b[?2004h"
    one = screen(f"persistent-sessions host -- python3 keys.py '{modes}'; echo rc=$?")
    one.expect("<ready>")
    keys = ("\x02", "\x00", "\x01", "\x1b[A", "\x1b[D", "\x1b[200~a b\x1b[201~", "\x1b[<0;5;6M")
    for key in keys:
        one.send(key)
        one.expect(f"<{key.encode().hex()}>")
    one.resize(30, 100)
    one.expect("<size 100x30>")
    one.send("q")
    one.expect("rc=7")


# ---- Waiting --------------------------------------------------------------


def test_nobody_wakes_up_while_a_command_runs(ann):
    ann.begin("idle", "exec sleep 100")
    one = ann.launch("idle")
    count = f"cat /proc/{one['callerPid']}/status /proc/{one['panePid']}/status | grep ^volun"
    twice = f"{count} >a; sleep 2; {count} | cmp a -"
    assert wait_until(lambda: ann.sh(twice, check=False).returncode == 0)


# ---- A reboot comes last --------------------------------------------------


def test_after_a_reboot_every_launch_has_its_end(ann):
    ann.begin("off", "exec sleep 100")
    ann.launch("off")
    ann.box.reboot()
    assert ann.box.manager_is_up("ann")
    ended = ann.hosted("off")[0]
    assert (ended["state"], ended["status"]) in (("ENDED", 143), ("ENDED", 129), ("LOST", None))
    ann.begin("cut", "exec sleep 100")
    ann.launch("cut")
    ann.box.crash()
    ann.box.boot()
    assert ann.box.manager_is_up("ann") and ann.state("cut") == "LOST"
