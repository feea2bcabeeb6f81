"""What is adopted, how it becomes visible, and what must never be touched."""

from __future__ import annotations

import json
import os

import pytest
from adopt_support import DENY, LATER, NEW, OLD, OTHER, Box, files, program, snapshot, task


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


def test_the_list_of_the_one_predecessor_becomes_this_sessions(box):
    source = snapshot(box.session(OLD))
    said = box.hook()
    assert f"recovered from {OLD}" in said.context
    assert snapshot(f"{box.tasks}/{OLD}") == source
    copies = snapshot(f"{box.tasks}/{NEW}")
    assert {n: c[:2] for n, c in copies.items()} == {n: s[:2] for n, s in source.items()}


def test_the_copy_is_private(box):
    box.session(OLD)
    box.hook()
    assert os.stat(f"{box.tasks}/{NEW}").st_mode & 0o7777 == 0o700
    assert {m & 0o7777 for _, _, m in snapshot(f"{box.tasks}/{NEW}").values()} == {0o600}


def test_unknown_fields_and_every_byte_are_kept(box):
    raw = '{"id":"7","subject":"ü\\u00e9","description":"","status":"pending",\n'
    raw += '  "blocks":["8"],"blockedBy":[],"owner":"me","x":{"n":1.50}}\n'
    box.session(OLD, task(1))
    box.store(OLD, **{"7.json": raw})
    box.hook()
    assert files(f"{box.tasks}/{NEW}")["7.json"] == raw.encode()


def test_nanoseconds_of_the_tasks_are_kept(box):
    path = f"{box.session(OLD, task(1))}/1.json"
    os.utime(path, ns=(123456789, 1700000000123456789))
    box.hook()
    assert os.stat(f"{box.tasks}/{NEW}/1.json").st_mtime_ns == 1700000000123456789


def test_a_second_run_finds_the_own_list(box):
    box.session(OLD)
    box.hook()
    before = snapshot(box.tasks)
    said = box.hook()
    assert "recovered" not in said.context and "subject 2" in said.context
    assert snapshot(box.tasks) == before and box.lists() == {OLD, NEW}


@pytest.mark.parametrize("source", ["startup", "resume", "fork", "compact", "not-known-yet", ""])
def test_every_source_but_clear_adopts(box, source):
    box.session(OLD)
    assert "recovered" in box.hook(source=source).context
    assert box.has()


def test_clear_is_silent_and_adopts_nothing(box):
    box.session(OLD)
    assert box.hook(source="clear").stdout == ""
    assert box.lists() == {OLD}


@pytest.mark.parametrize("source", ["resume", "compact"])
def test_what_was_put_away_by_clear_does_not_come_back(box, source):
    box.session(OLD)
    records = [{"type": "mode"}, {"type": "system", "commandRun": {"command": "clear", "args": ""}}]
    box.transcript(NEW, *records, {"type": "user", "cwd": box.project}, ago=10)
    assert OLD not in box.hook(source=source).stdout
    assert box.lists() == {OLD}


@pytest.mark.parametrize(
    "own",
    [{}, {"1.json": json.dumps(task(1, "completed"))}, {"1.json": "{"}, {"__lock": ""}],
    ids=["empty", "closed", "malformed", "lock"],
)
def test_an_own_list_is_never_replaced_or_filled(box, own):
    box.session(OLD)
    box.store(NEW, **own)
    before = snapshot(box.tasks)
    assert box.hook().stdout == ""
    assert snapshot(box.tasks) == before and box.lists() == {OLD, NEW}


@pytest.mark.parametrize("make", [os.mkdir, lambda p: os.symlink("nowhere", p), os.mknod])
def test_whatever_has_the_name_of_the_list_stays(box, make):
    box.session(OLD)
    path = f"{box.tasks}/{NEW}"
    make(path)
    before = os.lstat(path)
    box.hook()
    assert os.path.samestat(os.lstat(path), before) and box.lists() == {OLD, NEW}


def test_a_lock_is_not_copied_and_a_number_once_given_is(box):
    box.session(OLD, *(task(n) for n in range(263, 266)))
    box.store(OLD, __lock="", __highwatermark="300")
    box.hook()
    names = {"263.json", "264.json", "265.json", ".highwatermark"}
    assert set(files(f"{box.tasks}/{NEW}")) == names
    assert files(f"{box.tasks}/{NEW}")[".highwatermark"] == b"300"


@pytest.mark.parametrize("mark", ["", "x", "-1", "3.5", "9" * 19, "\u0663"])
def test_a_number_that_is_none_is_not_copied(box, mark):
    box.session(OLD, task(1))
    box.store(OLD, __highwatermark=mark)
    box.hook()
    assert set(files(f"{box.tasks}/{NEW}")) == {"1.json"}


def test_helper_files_alone_are_nothing_to_adopt(box):
    box.session(OLD)
    for name in os.listdir(f"{box.tasks}/{OLD}"):
        os.unlink(f"{box.tasks}/{OLD}/{name}")
    box.store(OLD, __lock="", __highwatermark="3")
    assert box.hook().stdout == "" and not box.has()


BAD = {
    "2.json": json.dumps(task(3)),
    "03.json": json.dumps(task(3, id="03")),
    "0.json": json.dumps(task(0)),
    "4.json": json.dumps(task(4, id=4)),
    "5.json": json.dumps(task(5, subject=None)),
    "6.json": json.dumps(task(6, description=...)),
    "7.json": json.dumps(task(7, blocks=...)),
    "8.json": json.dumps(task(8, blockedBy=None)),
    "9.json": json.dumps(task(9, "deleted")),
    "10.json": json.dumps(task(10, "someday")),
    "11.json": json.dumps(task(11))[:-1],
    "12.json": b"\xff" + json.dumps(task(12)).encode(),
    "13.json": "[" * 100_000,
    "14.json": json.dumps(task(14, description="x" * (1 << 20))),
    "15.json": "null",
    "16.json": "",
    "\u0661.json": json.dumps(task(1, id="\u0661")),
    "x.json": json.dumps(task(1, id="x")),
    "17.json": json.dumps(task(17, status=["pending"])),
    "18.json": "9" * 5000,
    "19.json": json.dumps(task(19, owner=None)),
    "20.json": json.dumps(task(20, activeForm=7)),
    "21.json": json.dumps(task(21, metadata=[])),
    "22.json": json.dumps(task(22, blocks=[1])),
    "23.json": json.dumps(task(23, blockedBy=[None])),
    "24.json": b"\xef\xbb\xbf" + json.dumps(task(24)).encode(),
    "25.json": json.dumps(task(25, metadata={"x": float("nan")})),
    "26.json": json.dumps(task(26, metadata={"x": float("-inf")})),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_claude_would_not_show_is_skipped_and_the_rest_adopted(box, name):
    box.session(OLD, task(1))
    box.store(OLD, **{name: BAD[name]})
    assert "1 open" in box.hook().context
    assert set(files(f"{box.tasks}/{NEW}")) == {"1.json"}


def test_a_list_of_such_files_alone_is_nothing_to_adopt(box):
    box.session(OLD)
    for name in os.listdir(f"{box.tasks}/{OLD}"):
        os.unlink(f"{box.tasks}/{OLD}/{name}")
    box.store(OLD, **BAD)
    assert box.hook().stdout == "" and not box.has()


@pytest.mark.parametrize("odd", ["link", "folder", "fifo"])
def test_what_is_not_a_regular_file_is_skipped(box, odd):
    source = box.session(OLD, task(1))
    with open(f"{box.home}/secret", "w") as f:
        json.dump(task(2), f)
    make = {"link": lambda p: os.symlink(f"{box.home}/secret", p), "folder": os.mkdir}
    make.get(odd, os.mkfifo)(f"{source}/2.json")
    box.hook()
    assert os.listdir(f"{box.tasks}/{NEW}") == ["1.json"]


def test_internal_tasks_are_copied_but_do_not_make_a_list_worth_adopting(box):
    hidden = task(2, metadata={"_internal": True})
    box.session(OLD, task(1, "completed"), hidden)
    assert box.hook().stdout == "" and not box.has()
    box.store(OLD, task(3))
    assert "1 open" in box.hook().context
    assert len(files(f"{box.tasks}/{NEW}")) == 3


def test_the_folder_of_all_lists_may_be_a_link_to_another_disk(box, tmp_path):
    box.session(OLD)
    os.rename(box.tasks, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", box.tasks)
    assert "recovered" in box.hook(env={"TMPDIR": "/nowhere"}).context
    assert set(os.listdir(tmp_path / "elsewhere")) == {OLD, NEW}


def test_without_any_list_no_folder_is_made(box):
    box.transcript(OLD)
    os.rmdir(box.tasks)
    said = box.hook()
    assert (said.stdout, said.stderr) == ("", "") and not os.path.exists(box.tasks)


def test_the_moved_config_folder_is_followed(box, tmp_path):
    box.session(OLD)
    os.rename(box.claude, tmp_path / "alt")
    path = f"{tmp_path}/alt/projects/-box-proj/{NEW}.jsonl"
    said = box.hook(env={"CLAUDE_CONFIG_DIR": f"{tmp_path}/alt"}, transcript_path=path)
    assert "recovered" in said.context and os.path.isdir(tmp_path / "alt" / "tasks" / NEW)


def test_another_folder_of_lists_can_be_named(box, tmp_path):
    box.session(OLD)
    os.rename(box.tasks, tmp_path / "lists")
    assert "recovered" in box.hook(env={"CCR_TASKS_ROOT": f"{tmp_path}/lists"}).context
    assert set(os.listdir(tmp_path / "lists")) == {OLD, NEW}


@pytest.mark.parametrize("code", ["EINVAL", "ENOSYS", "ENOTSUP"])
def test_where_no_rename_can_promise_not_to_replace_there_is_a_hint(box, code):
    box.session(OLD)
    context = box.hook(before=[DENY, "renameat2", code]).context
    assert f"adopt --from {OLD} --to {NEW}" in context and "recovered" not in context
    assert box.lists() == {OLD}


def test_where_the_c_library_has_no_renameat2_the_system_call_is_used(box):
    code = "import ctypes,sys;sys.path.append(sys.argv.pop(1));import task_adopt as m;"
    code += "C=ctypes.CDLL(None,use_errno=True);N={'syscall':C.syscall,'syncfs':C.syncfs};"
    code += "ctypes.CDLL=lambda *a,**k:type('L',(),N)();"
    code += "sys.exit(m.main())"
    folder = os.path.dirname(program()[2])
    box.session(OLD)
    assert "recovered" in box.hook(argv=[*program()[:2], "-c", code, folder]).context


def test_leftovers_of_a_killed_hook_are_removed_by_the_next(box):
    box.store(".task-adopt-4000000-123", task(1))
    box.store(NEW, task(1))
    box.hook()
    assert box.lists() == {NEW}


def test_the_staging_folder_of_a_live_hook_is_left_alone(box):
    with open("/proc/self/stat") as f:
        start = f.read().rpartition(")")[2].split()[19]
    name = f".task-adopt-{os.getpid()}-{start}"
    box.store(name, task(1))
    box.hook()
    assert name in box.lists()


def test_a_second_third_and_fourth_restart_work_like_the_first(box):
    box.session(OLD, ago=400)
    for before, after, ago in ((OLD, NEW, 300), (NEW, OTHER, 200), (OTHER, LATER, 100)):
        assert f"recovered from {before}" in box.hook(after).context
        box.transcript(after, ago=ago)
    assert files(f"{box.tasks}/{LATER}") == files(f"{box.tasks}/{OLD}")
