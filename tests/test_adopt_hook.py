"""Whatever is on standard input and on the disk: status 0, and nothing or one JSON object."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time

import pytest
from adopt_support import HOOK, NEW, OLD, OTHER, Box, Said, program, task
from support import ABSENT, Terminal, wait_until


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


@pytest.fixture
def start(box):
    """Start the hook; what still runs at the end is killed."""
    running = []

    def run(**how):
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **how}
        process = subprocess.Popen(
            program(), stderr=subprocess.PIPE, env=box.env(), cwd=box.project, **how
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()


def outcome(process):
    out, err = process.stdout.read(), process.stderr.read()
    return Said(process.wait(20), out.decode(), err.decode())


BAD = ["", "{", "[]", "null", "7", '"x"', "\0", "{}", "\xff", "[" * 99999, '{"session_id": 7}']


@pytest.mark.parametrize("text", BAD)
def test_input_that_is_no_payload_is_silence(box, text):
    box.session(OLD)
    said = box.hook(text=text)
    assert (said.stdout, said.stderr) == ("", "") and box.lists() == {OLD}


def test_a_byte_order_mark_before_the_payload_is_no_matter(box, start):
    box.session(OLD)
    assert "recovered" in box.hook(text="\ufeff" + box.payload()).context
    process = start()
    for piece in (b"\xef", b"\xbb\xbf{", box.payload(OTHER).encode()[1:]):
        process.stdin.write(piece)
        process.stdin.flush()
        assert wait_until(lambda: unread(process) == 0)
    assert "2 open tasks" in outcome(process).context and box.has(OTHER)


def test_a_byte_order_mark_makes_a_task_none(box):
    whole = json.dumps(task(1, subject="marked"))
    box.store(NEW, task(2), **{"1.json": "\ufeff" + whole})
    assert "marked" not in box.hook().context


IDS = [
    "",
    ".",
    "..",
    "/x",
    "a/b",
    "../x",
    "x" * 300,
    "a\0b",
    "a\nb",
    ".x",
    "a\\b",
    "\u202e",
    "\ud800",
]


@pytest.mark.parametrize("name", IDS)
def test_an_unsafe_session_id_touches_nothing(box, name):
    box.session(OLD)
    before = sorted(os.walk(box.home))
    assert box.hook(text=json.dumps({**json.loads(box.payload()), "session_id": name})).stdout == ""
    assert sorted(os.walk(box.home)) == before


@pytest.mark.parametrize("key", ["transcript_path", "cwd", "source", "hook_event_name"])
@pytest.mark.parametrize("value", [None, "", 7, [], "relative", "/nowhere/x.jsonl", "/dev/null"])
def test_any_other_field_may_be_anything(box, key, value):
    box.session(OLD)
    box.hook(**{key: value}).context  # noqa: B018 (it checks the output)
    assert box.lists() <= {OLD, NEW}


@pytest.mark.parametrize("event", ["SessionEnd", "PreCompact"])
def test_another_event_is_silence(box, event):
    box.session(OLD)
    assert box.hook(hook_event_name=event).stdout == "" and not box.has()


@pytest.mark.parametrize("name", ["sess-1", "aaaa", "ABC_1.x"])
def test_ids_need_not_be_uuids(box, name):
    box.session(name)
    assert f"recovered from {name}" in box.hook("next-1").context and box.has("next-1")


def test_a_payload_is_enough_the_end_of_input_is_not_waited_for(box, start):
    box.session(OLD)
    process = start()
    process.stdin.write(box.payload().encode())
    process.stdin.flush()
    began = time.monotonic()
    assert "recovered" in outcome(process).context and time.monotonic() - began < 2


def test_a_payload_may_come_in_pieces(box, start):
    box.session(OLD)
    process, text = start(), box.payload(more={"nested": "}"}).encode()
    for at in range(0, len(text), 40):
        process.stdin.write(text[at : at + 40])
        process.stdin.flush()
        assert wait_until(lambda: unread(process) == 0)
    assert "recovered" in outcome(process).context


def unread(process):
    """Return how many bytes wait in the pipe to its standard input."""
    import array
    import fcntl
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, count)
    return count[0]


@pytest.mark.parametrize("text", [b"", b'{"session_id": '])
def test_input_that_never_comes_is_given_up(box, start, text):
    process = start()
    process.stdin.write(text)
    process.stdin.flush()
    began = time.monotonic()
    said = outcome(process)
    assert (said.status, said.stdout) == (0, "") and time.monotonic() - began < 8


def test_a_flood_on_standard_input_is_given_up(box, start):
    with open("/dev/zero", "rb") as zeros:
        said = outcome(start(stdin=zeros))
    assert (said.status, said.stdout) == (0, "")


def shell(box, text, **env):
    argv = ["sh", "-c", text, "sh", *program()]
    given = {"input": box.payload().encode(), "env": box.env(**env), "cwd": box.project}
    return subprocess.run(argv, capture_output=True, timeout=30, **given)


REDIRECTIONS = [
    "0<&-",
    "1>&-",
    "2>&-",
    "0<&- 1>&- 2>&-",
    ">/dev/full",
    "2>/dev/full",
    "0</dev/null",
]


@pytest.mark.parametrize("how", REDIRECTIONS)
def test_missing_full_and_odd_descriptors_do_not_fail_the_session(box, how):
    box.session(OLD)
    done = shell(box, f'"$@" {how}')
    assert (done.returncode, done.stderr.count(b"Traceback")) == (0, 0)


def test_a_full_error_stream_on_top_of_an_error_does_not_fail_the_session(box):
    with open(f"{box.home}/x", "w"):
        pass
    for how in ("2>/dev/full", "2>&-"):
        assert shell(box, f'"$@" {how}', CCR_TASKS_ROOT=f"{box.home}/x").returncode == 0


def test_a_reader_that_has_gone_does_not_fail_the_session(box, start):
    box.session(OLD)
    process = start()
    process.stdout.close()
    process.stdin.write(box.payload().encode())
    process.stdin.close()
    assert b"Traceback" not in process.stderr.read() and process.wait(20) == 0 and box.has()


def test_a_terminal_as_standard_input_alone_is_silence(box):
    command = f"{' '.join(program())} >{box.home}/out 2>&1; echo status $?"
    terminal = Terminal("sh", "-c", command, env=box.env())
    terminal.expect("status 0")
    terminal.end()
    with open(f"{box.home}/out") as f:
        assert f.read() == ""


def test_on_a_terminal_it_explains_itself(box):
    terminal = Terminal(*program(), env=box.env())
    terminal.expect("task-adopt adopt --from ID")
    assert terminal.wait() == 0
    terminal.end()


@pytest.mark.parametrize("name", ["HOME", "CLAUDE_CONFIG_DIR", "CCR_TASKS_ROOT", "XDG_STATE_HOME"])
@pytest.mark.parametrize("value", ["", "relative", "/dev/null", "/nowhere", "\udcff"])
def test_an_odd_environment_does_not_fail_the_session(box, name, value):
    box.session(OLD)
    box.hook(env={name: value}).context  # noqa: B018 (it checks the output)


@pytest.mark.parametrize("where", [f"tasks/{OLD}/x", "sessions/x", "tasks/.task-adopt-"])
def test_a_file_name_that_is_not_utf_8_hides_nothing(box, where):
    box.session(OLD)
    path = f"{box.claude}/{where}\udcff.json"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").close()
    said = box.hook()
    assert f"recovered from {OLD}" in said.context and said.stderr == ""


@pytest.mark.parametrize("what", ["tasks", "projects/-box-proj", "sessions"])
def test_a_file_where_a_folder_should_be_does_not_fail_the_session(box, what):
    box.session(OLD)
    path = f"{box.claude}/{what}"
    if os.path.exists(path):
        os.rename(path, f"{box.home}/away")
    with open(path, "w"):
        pass
    assert "recovered" not in box.hook(source="compact").stdout


def test_a_python_file_beside_it_is_not_imported(box):
    box.session(OLD)
    for name in ("json.py", "os.py", "select.py", "ctypes.py"):
        with open(f"{box.project}/{name}", "w") as f:
            f.write("raise SystemExit(9)")
    assert "recovered" in box.hook(env={"PYTHONPATH": box.project}).context


def test_it_runs_as_the_file_itself(box):
    box.session(OLD)
    assert "recovered" in box.hook(argv=[HOOK]).context


def test_it_runs_through_the_import_door(box, tmp_path):
    door = tmp_path / "lib"
    door.mkdir()
    os.symlink(HOOK, door / "task_adopt.py")
    box.session(OLD)
    code = f'import sys;sys.path.append("{door}");import task_adopt as m;sys.exit(m.main())'
    assert "recovered" in box.hook(argv=[*program()[:2], "-c", code]).context


@pytest.fixture
def latin(tmp_path):
    """Return an environment whose locale is a Latin-1 one, made for this test."""
    argv = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", f"{tmp_path}/en_US.ISO-8859-1"]
    if not shutil.which("localedef") or subprocess.run(argv, capture_output=True).returncode:
        pytest.skip(f"{ABSENT}the sources of locales")
    return {"LOCPATH": str(tmp_path), "LC_ALL": "en_US.ISO-8859-1"}


DOOR = f'import sys;sys.path.append("{os.path.dirname(HOOK)}");import task_adopt as m;'
DOORS = {"file": program(), "import": [*program()[:2], "-c", DOOR + "sys.exit(m.main())"]}


@pytest.mark.parametrize("way", DOORS)
def test_a_folder_is_the_same_in_a_locale_that_cannot_spell_it(box, latin, way):
    box.project = f"{box.home}/日本"
    os.mkdir(box.project)
    box.session(OLD, task(1, subject="日本"))
    said = box.command("status", **latin)
    assert f"{OLD}  1 of 1 open  candidate" in said.stdout and said.stderr == ""
    said = box.hook(argv=DOORS[way], env=latin)
    assert f"recovered from {OLD}" in said.context and "#1 [pending] 日本" in said.context
    assert said.stderr == "" and box.has()


def test_a_restrictive_umask_does_not_make_the_copy_unreadable(box):
    box.session(OLD, task(1))
    assert (
        "subject 1" in box.hook(argv=["sh", "-c", 'umask 777; exec "$@"', "sh", *program()]).context
    )
    assert os.stat(f"{box.tasks}/{NEW}/1.json").st_mode & 0o777 == 0o600


def test_two_that_are_ambiguous_need_a_person(box):
    box.session(OLD, task(1))
    box.session(OTHER, task(1, subject="x"))
    assert "recovered" not in box.hook().context
    assert box.command("adopt", "--from", OLD, "--to", NEW).status == 0
    assert "subject 1" in box.hook().context
