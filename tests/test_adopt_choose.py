"""Which earlier session is the predecessor, and which ones never are."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading

import pytest
from adopt_support import HOOK, LATER, NEW, OLD, OTHER, UNPRIVILEGED, Box, files, task
from support import ABSENT, wait_until


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


@pytest.fixture
def neighbour():
    """A process that runs for as long as the test."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def fields(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(")")[2].split()


def start_time(pid):
    return fields(pid)[19]


def state(pid):
    return fields(pid)[0]


# ---- None, one or several -------------------------------------------------


def test_nothing_there_is_silence(box):
    said = box.hook()
    assert (said.stdout, said.stderr) == ("", "")


def test_a_folder_that_claude_has_not_made_yet_is_silence(box):
    os.rmdir(box.folder)
    said = box.hook()
    assert (said.stdout, said.stderr) == ("", "")


def test_of_two_that_can_be_meant_both_are_named_and_none_adopted(box):
    box.session(OLD, task(1), ago=200)
    box.session(OTHER, task(1, subject="another"))
    context = box.hook().context
    assert f"--from {OLD}" in context and f"--from {OTHER}" in context
    assert "recovered" not in context and box.lists() == {OLD, OTHER}


def test_of_too_many_to_name_the_others_are_counted(box):
    names = [f"{n:08d}-0000-4000-8000-000000000000" for n in range(100)]
    for name in names:
        box.session(name, task(1, subject=f"{name} " * 9))
    context = box.hook().context
    named = sum(f"--from {name}" in context for name in names)
    assert 0 < named < 100 and f"({100 - named} more not shown)" in context


def test_a_finished_list_is_no_candidate(box):
    box.session(OLD, task(1, "completed"), ago=50)
    box.session(OTHER, task(1, subject="open"), ago=200)
    assert f"recovered from {OTHER}" in box.hook().context


def test_the_name_of_a_list_alone_makes_no_candidate(box):
    for name in ("session-1a2b3c4d", "my-list", OLD):
        box.store(name, task(1))
    assert box.hook().stdout == "" and not box.has()


def test_malformed_siblings_do_not_make_a_good_one_ambiguous(box):
    box.session(OLD)
    box.transcript(OTHER)
    box.store(OTHER, **{"1.json": "{", "2.json": json.dumps(task(3))})
    assert f"recovered from {OLD}" in box.hook().context


def test_a_newer_list_that_cannot_be_read_leaves_a_doubt(box):
    box.session(OLD)
    os.chmod(box.session(OTHER, ago=50), 0)
    said = box.hook(before=UNPRIVILEGED)
    assert f"--from {OLD} --to {NEW}  # {OTHER}: Permission denied" in said.context
    assert not box.has()


def test_a_list_that_is_a_file_is_none(box):
    box.session(OLD)
    box.transcript(OTHER, ago=50)
    open(f"{box.tasks}/{OTHER}", "w").close()
    assert f"recovered from {OLD}" in box.hook().context


@pytest.mark.parametrize("name", ["..", ".x", "a\u2028b", "x" * 129, "agent-x1", f"{OTHER}.live"])
def test_a_sibling_of_an_unsafe_or_foreign_name_is_none(box, name):
    box.session(name)
    before = box.lists()
    assert box.hook().stdout == "" and box.lists() == before


def test_a_list_that_is_a_link_is_none(box):
    os.rename(box.session(OLD), f"{box.home}/list")
    os.symlink(f"{box.home}/list", f"{box.tasks}/{OLD}")
    assert box.hook().stdout == "" and not box.has()


def test_a_transcript_that_is_a_link_or_a_folder_is_none(box):
    os.rename(f"{box.session(OLD)}/../../projects/-box-proj/{OLD}.jsonl", f"{box.home}/t")
    os.symlink(f"{box.home}/t", f"{box.folder}/{OLD}.jsonl")
    box.store(OTHER, task(1))
    os.mkdir(f"{box.folder}/{OTHER}.jsonl")
    assert box.hook().stdout == "" and not box.has()


def test_a_conversation_resumed_in_another_folder_takes_nothing_of_this_one(box):
    box.session(OLD)
    os.mkdir(f"{box.claude}/projects/-old")
    os.rename(box.transcript(NEW, ago=9e5), f"{box.claude}/projects/-old/{NEW}.jsonl")
    assert box.hook(source="resume").stdout == "" and not box.has()


# ---- Older ----------------------------------------------------------------


def test_the_predecessor_is_found_before_and_after_the_own_transcript_exists(box):
    box.session(OLD)
    box.transcript(NEW, ago=10)
    assert f"recovered from {OLD}" in box.hook().context


@pytest.mark.parametrize("ago", [0, -1])
def test_one_that_is_not_older_than_the_own_transcript_is_only_named(box, ago):
    box.session(OLD, ago=10 + ago)
    box.transcript(NEW, ago=10)
    context = box.hook().context
    assert f"--from {OLD}" in context and "not older" in context and not box.has()


def test_one_from_the_future_is_only_named(box):
    box.session(OLD, ago=-7 * 86400)
    assert f"--from {OLD}" in box.hook().context and not box.has()


def test_one_from_1970_is_older(box):
    box.session(OLD)
    os.utime(f"{box.folder}/{OLD}.jsonl", ns=(0, 0))
    assert f"recovered from {OLD}" in box.hook().context


# ---- The same folder ------------------------------------------------------


def test_another_project_whose_folder_encodes_alike_is_none(box):
    box.session(OLD, cwd=f"{box.home}/proj-")
    assert box.hook().stdout == "" and not box.has()


def test_the_folder_is_compared_by_what_it_is_not_by_how_it_is_written(box):
    os.symlink(box.project, f"{box.home}/link")
    box.session(OLD, cwd=f"{box.home}/link")
    assert "recovered" in box.hook().context


@pytest.mark.parametrize("name", ["my_proj", ".dot", "日本", "d" * 115 + "/" + "e" * 115])
def test_any_folder_name_will_do(box, name):
    os.makedirs(f"{box.home}/{name}")
    box.session(OLD, cwd=f"{box.home}/{name}")
    assert "recovered" in box.hook(cwd=f"{box.home}/{name}").context


def test_a_sub_agents_transcript_is_none(box):
    box.session(OLD)
    box.transcript(OLD, {"isSidechain": True, "cwd": box.project, "type": "user"})
    assert box.hook().stdout == "" and not box.has()


def test_a_sub_agent_later_in_the_conversation_does_not_matter(box):
    box.session(OLD)
    main, side = ({"isSidechain": s, "cwd": box.project, "type": "user"} for s in (False, True))
    box.transcript(OLD, main, side)
    assert "recovered" in box.hook().context


def test_one_whose_folder_is_nowhere_recorded_is_only_named(box):
    box.session(OLD)
    box.transcript(OLD, {"type": "mode"})
    assert f"--from {OLD}" in box.hook().context and not box.has()


def record(box):
    return json.dumps({"type": "user", "isSidechain": False, "cwd": box.project}).encode()


DAMAGE = {
    "unfinished": lambda r: r + b"\n" + r[:-9],
    "half a line first": lambda r: r[:20] + b"\n" + r + b"\n",
    "NULs": lambda r: b"\0" * 4096 + b"\n" + r + b"\n" + b"\0" * 4096,
    "NULs before it": lambda r: b"\0" * 4096 + r + b"\n",
    "two on a line": lambda r: r + r + b"\n",
    "not UTF-8": lambda r: b'{"x":"\xff"}\n' + r + b"\n",
    "far away": lambda r: b"{}\n" * 200_000 + r + b"\n",
}


@pytest.mark.parametrize("text", ["why does f(){}{} fail", '{"a":1}{"b":2}'])
def test_braces_in_what_was_typed_are_no_damage(box, text):
    box.store(OLD, task(1))
    typed = {"type": "user", "cwd": box.project, "message": {"content": text}}
    path = box.transcript(OLD, typed)
    with open(path) as f:
        assert "}{" in f.read()
    assert f"recovered from {OLD}" in box.hook().context


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_transcript_is_still_a_candidate_and_never_edited(box, kind):
    box.session(OLD)
    raw = DAMAGE[kind](record(box))
    path = box.transcript(OLD, raw=raw)
    said = box.hook()
    assert "recovered" in said.context and said.stderr == ""
    with open(path, "rb") as f:
        assert f.read() == raw


@pytest.mark.parametrize("raw", [b"\0" * 99, b"\n", b"{" * 99999, b'{"cwd":7}\n', b"[[["])
def test_a_transcript_that_tells_nothing_is_only_named(box, raw):
    box.session(OLD)
    box.transcript(OLD, raw=raw)
    said = box.hook()
    assert f"--from {OLD}" in said.context and said.stderr == "" and not box.has()


# ---- Somebody else's ------------------------------------------------------


@pytest.mark.parametrize("known", ["start time", "no start time"])
def test_one_that_a_live_process_works_on_is_none(box, neighbour, known):
    box.session(OLD)
    more = {"procStart": start_time(neighbour.pid)} if known == "start time" else {}
    box.record(OLD, neighbour.pid, **more)
    assert box.hook().stdout == "" and not box.has()


def test_beside_a_running_neighbour_the_interrupted_one_is_found(box, neighbour):
    box.session(OLD, ago=200)
    box.session(OTHER, task(1, subject="mine"), ago=1)
    box.record(OTHER, neighbour.pid, procStart=start_time(neighbour.pid))
    assert f"recovered from {OLD}" in box.hook().context


def test_a_reused_process_number_holds_nothing(box, neighbour):
    box.session(OLD)
    box.record(OLD, neighbour.pid, procStart="1")
    assert "recovered" in box.hook().context


def test_a_dead_process_holds_nothing(box):
    box.session(OLD)
    done = subprocess.Popen(["true"])
    done.wait()
    box.record(OLD, done.pid, procStart="1")
    assert "recovered" in box.hook().context


def test_a_zombie_holds_nothing(box):
    box.session(OLD)
    process = subprocess.Popen(["sleep", "1000"])
    born = start_time(process.pid)
    process.kill()
    assert wait_until(lambda: state(process.pid) == "Z")
    box.record(OLD, process.pid, procStart=born)
    assert "recovered" in box.hook().context
    process.wait()


def test_a_thread_of_another_program_holds_nothing(box):
    box.session(OLD)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    box.record(OLD, thread.native_id)
    said = box.hook()
    done.set()
    thread.join()
    assert "recovered" in said.context


def test_a_process_of_another_user_holds_too(neighbour):
    if os.getuid() != 0:
        pytest.skip(f"{ABSENT}root, to be two users")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        box = Box(folder)
        box.session(OLD)
        box.record(OLD, neighbour.pid, procStart=start_time(neighbour.pid))
        subprocess.run(["chown", "-R", "nobody", folder], check=True)
        nobody = ["setpriv", "--reuid=nobody", "--clear-groups", "/usr/bin/python3", "-IS", HOOK]
        assert box.hook(argv=nobody).stdout == ""
        assert not box.has()


@pytest.mark.parametrize("text", ["", "{", '{"pid":', "\0\0\0"])
def test_half_a_record_of_a_live_process_leaves_a_doubt(box, neighbour, text):
    box.session(OLD)
    with open(box.record(OLD, neighbour.pid), "w") as f:
        f.write(text)
    assert f"--from {OLD}" in box.hook().context and not box.has()


def test_half_a_record_of_a_dead_process_does_not(box):
    box.session(OLD)
    with open(box.record(OLD, 4_000_000), "w") as f:
        f.write("{")
    assert "recovered" in box.hook().context


def test_records_that_cannot_be_listed_leave_a_doubt(box):
    box.session(OLD)
    with open(f"{box.claude}/sessions", "w"):
        pass  # not a folder: this fails for root, too
    assert f"--from {OLD}" in box.hook().context and not box.has()


@pytest.mark.parametrize("pid", [0, -1, 1 << 70, True, "12", None, []])
def test_a_nonsensical_process_number_holds_nothing(box, pid):
    box.session(OLD)
    os.makedirs(f"{box.claude}/sessions")
    with open(f"{box.claude}/sessions/x.json", "w") as f:
        json.dump({"pid": pid, "sessionId": OTHER}, f)
    assert "recovered" in box.hook().context


def test_one_that_a_persistent_session_brings_back_is_none(box):
    box.session(OLD)
    box.witness("work", f"{OLD}\n{OTHER}\n")
    assert box.hook().stdout == "" and not box.has()


@pytest.mark.parametrize("mark", ["", "\ufeff", "# name\tdirectory\n\n", "\0\0\0\n"])
@pytest.mark.parametrize("rows", ["registry.tsv", "manifest.tsv"])
def test_a_row_in_either_list_reserves_what_the_session_comes_back_to(box, rows, mark):
    box.session(OLD)
    os.makedirs(box.state)
    with open(f"{box.state}/{rows}", "w", encoding="utf-8") as f:
        f.write(f"{mark} café \t/somewhere\n")
    box.witness("café", f"{OLD}\n", rows="")
    assert box.hook().stdout == "" and not box.has()


@pytest.mark.parametrize("text", ["", "other\t/gone\tgone\tgone\n", "#gone\t/x\n", "gone2\t/x\n"])
def test_what_is_left_of_a_session_without_a_row_reserves_nothing(box, text):
    box.session(OLD)
    box.witness("gone", f"{OLD}\n", rows="")
    for rows in ("registry.tsv", "manifest.tsv") if text else ():
        with open(f"{box.state}/{rows}", "w") as f:
            f.write(text)
    assert f"{OLD}  2 of 3 open  candidate" in box.command("status").stdout
    assert f"recovered from {OLD}" in box.hook().context


def test_nor_does_it_leave_a_doubt_when_it_cannot_be_read(box):
    box.session(OLD)
    os.makedirs(f"{box.state}/gone.id")
    assert f"recovered from {OLD}" in box.hook().context


def write_run(box, name, **pairs):
    """Write who supervises a persistent session."""
    os.makedirs(box.state, exist_ok=True)
    with open(f"{box.state}/{name}.run", "w") as f:
        f.writelines(f"{key}={value}\n" for key, value in pairs.items())


def boot():
    with open("/proc/sys/kernel/random/boot_id") as f:
        return f.read().strip()


def test_a_session_that_lives_without_a_row_keeps_its_conversation(box, neighbour):
    box.session(OLD)
    box.witness("work", f"{OLD}\n", rows="")
    write_run(box, "work", boot=boot(), pid=neighbour.pid, start=start_time(neighbour.pid), pane="")
    assert box.hook().stdout == "" and not box.has()


@pytest.mark.parametrize("change", [
    {"boot": "x"}, {"start": "1"}, {"start": ""}, {"pid": 0}, {"pid": "x"}, {"pid": 4_000_000},
])  # fmt: skip
def test_one_that_lives_no_more_keeps_nothing(box, neighbour, change):
    box.session(OLD)
    box.witness("work", f"{OLD}\n", rows="")
    whole = {"boot": boot(), "pid": neighbour.pid, "start": start_time(neighbour.pid)}
    write_run(box, "work", **{**whole, **change})
    assert f"recovered from {OLD}" in box.hook().context


@pytest.mark.parametrize("file", ["registry.tsv", "manifest.tsv", "work.run"])
def test_rows_and_supervisors_that_cannot_be_read_leave_a_doubt(box, file):
    box.session(OLD)
    box.witness("work", f"{OLD}\n", rows="")
    os.mkdir(f"{box.state}/{file}")
    said = box.hook()
    assert f"--from {OLD} --to {NEW}  # '{file}' in " in said.context and not box.has()


def test_one_of_a_retired_persistent_session_may_be_adopted(box):
    box.session(OLD)
    box.witness("work", f"{OLD}\n", retired="how=ended at its prompt\n")
    assert "recovered" in box.hook().context


def test_a_mark_that_a_power_cut_emptied_frees_nothing(box):
    box.session(OLD)
    box.witness("work", f"{OLD}\n", retired="\0" * 40)
    assert "recovered" not in box.hook().context


def test_an_earlier_conversation_of_a_persistent_session_may_be_adopted(box):
    box.session(OLD)
    box.witness("work", f"{NEW}\n{OLD}\n")
    assert "recovered" in box.hook().context


def test_the_session_that_takes_its_place_may_adopt_before_its_id_is_written(box, neighbour):
    box.session(OLD)
    box.witness("work", f"{OLD}\n")
    box.record(NEW, neighbour.pid, tmux="work:@1.%2")
    assert "recovered" in box.hook().context


def test_the_state_folder_can_be_elsewhere(box, tmp_path):
    box.session(OLD)
    box.state = f"{tmp_path}/state/persistent-sessions"
    box.witness("work", f"{OLD}\n")
    assert box.hook(env={"XDG_STATE_HOME": f"{tmp_path}/state"}).stdout == ""


def test_a_relative_state_folder_is_none(box):
    box.session(OLD)
    box.witness("work", f"{OLD}\n")
    assert box.hook(env={"XDG_STATE_HOME": "state"}).stdout == "" and not box.has()


@pytest.mark.parametrize("text", ["", "\0\0\0\0", "\n\n", "garbage \x01 \n", "\ud800"])
def test_a_damaged_witness_is_none(box, text):
    box.session(OLD)
    box.witness("work", text.encode("utf-8", "replace").decode())
    said = box.hook()
    assert "recovered" in said.context and said.stderr == ""


@pytest.mark.parametrize("kind", ["shut", "shut above", "no file"])
def test_a_witness_that_cannot_be_read_leaves_a_doubt(box, kind):
    box.session(OLD)
    box.witness("work", f"{OLD}\n")
    witness = f"{box.state}/work.id"
    if kind == "no file":
        os.unlink(witness)
        os.mkdir(witness)
    else:
        os.chmod(witness if kind == "shut" else os.path.dirname(box.state), 0)
    said = box.hook(before=UNPRIVILEGED)
    assert f"--from {OLD}" in said.context and said.stderr == "" and not box.has()


# ---- Superseded -----------------------------------------------------------


def test_one_whose_tasks_a_newer_session_carries_on_is_none(box):
    box.session(OLD, task(1), task(2), ago=300)
    box.session(OTHER, task(1, "completed"), task(2), task(3), ago=200)
    assert f"recovered from {OTHER}" in box.hook().context


def test_finished_work_does_not_come_back_from_an_older_list(box):
    box.session(OLD, task(1), task(2), ago=300)
    box.session(OTHER, task(1, "completed"), task(2, "completed"), ago=200)
    assert box.hook().stdout == "" and not box.has()


def test_nor_after_claude_has_wiped_the_finished_list(box):
    box.session(OLD, task(1), task(2), ago=300)
    box.transcript(OTHER, ago=200)
    box.store(OTHER, __highwatermark="2", __lock="")
    assert box.hook().stdout == "" and not box.has()


@pytest.mark.parametrize("mark", ["1", "", "x"])
def test_a_wiped_list_that_was_shorter_proves_nothing(box, mark):
    box.session(OLD, task(1), task(2), ago=300)
    box.transcript(OTHER, ago=200)
    box.store(OTHER, __highwatermark=mark)
    assert f"recovered from {OLD}" in box.hook().context


@pytest.mark.parametrize("subject", ["subject 1", "fix \\frac{a}{b}"])
def test_one_that_was_adopted_and_then_changed_is_none(box, subject):
    box.session(OLD, task(1, subject=subject), task(2), ago=300)
    context = box.hook(OTHER).context
    told = {"type": "hook_additional_context", "content": [context], "hookEvent": "SessionStart"}
    box.transcript(OTHER, {"attachment": told}, {"cwd": box.project}, ago=200)
    os.unlink(f"{box.tasks}/{OTHER}/1.json")
    assert f"recovered from {OTHER}" in box.hook(NEW).context
    assert set(files(f"{box.tasks}/{NEW}")) == {"2.json"}


def test_a_person_who_quotes_the_hook_supersedes_nothing(box):
    box.session(OLD, task(1), ago=300)
    box.session(OTHER, task(1, subject="another"), ago=200)
    said = f"task-adopt: 1 open tasks were recovered from {OLD}: they are in your list"
    box.transcript(OTHER, {"cwd": box.project, "message": {"content": said}}, ago=200)
    assert not box.hook().context.count("open tasks were recovered") and not box.has()


def test_what_another_hook_was_told_supersedes_nothing(box):
    box.session(OLD, task(1), ago=300)
    box.session(OTHER, task(1, subject="another"), ago=200)
    told = {"content": [f"recovered from {OLD}: they"], "hookEvent": "PostToolUse"}
    box.transcript(OTHER, {"attachment": told}, {"cwd": box.project}, ago=200)
    assert f"--from {OLD}" in box.hook().context and not box.has()


def test_one_of_the_same_time_supersedes_nothing(box):
    box.session(OLD, task(1), ago=200)
    box.session(OTHER, task(1), task(2), ago=200)
    assert f"--from {OLD}" in box.hook().context and not box.has()


def test_an_older_session_supersedes_nothing(box):
    box.session(OLD, task(1), task(2), ago=100)
    box.session(OTHER, task(1), task(2), task(3), ago=200)
    assert f"--from {OLD}" in box.hook().context and not box.has()


def test_a_running_session_that_adopted_it_supersedes_it(box, neighbour):
    box.session(OLD, ago=300)
    box.hook(OTHER)
    box.transcript(OTHER, ago=1)
    box.record(OTHER, neighbour.pid)
    assert box.hook(LATER).stdout == ""


# ---- Shared lists ---------------------------------------------------------


def test_a_named_list_is_shown_as_claude_spells_it_and_never_adopted_into(box):
    box.session(OLD)
    box.store("my_list---X-1", task(1, subject="shared"))
    context = box.hook(env={"CLAUDE_CODE_TASK_LIST_ID": "my_list.é/X-1"}).context
    assert "shared" in context and box.lists() == {OLD, "my_list---X-1"}


def test_a_named_list_that_is_not_there_stays_away(box):
    box.session(OLD)
    assert box.hook(env={"CLAUDE_CODE_TASK_LIST_ID": "my-list"}).stdout == ""
    assert box.lists() == {OLD}


TEAMS = {"CLAUDE_CODE_EXPERIMENTAL_AGENT_TEAMS": "1", "CLAUDE_CODE_ENTRYPOINT": "cli"}


def test_a_teams_list_is_shown_and_never_adopted_into(box):
    box.session(OLD)
    box.store("session-bbbbbbbb", task(1, subject="of the team"))
    assert "of the team" in box.hook(env=TEAMS).context and not box.has()


def test_a_teams_list_that_is_not_there_stays_away(box):
    box.session(OLD)
    assert box.hook(env=TEAMS).stdout == "" and box.lists() == {OLD}


def test_without_a_screen_a_team_has_no_list_of_its_own(box):
    box.session(OLD)
    assert "recovered" in box.hook(env={**TEAMS, "CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}).context


@pytest.mark.parametrize("text", ["session-aaaaaaaa", "session-aaaaaaaa\n", " my-list\t\n"])
def test_a_team_keeps_its_list_after_clear(box, text):
    box.session(OLD)
    box.store(text.strip(), task(1, subject="before the clear"))
    box.store("session-bbbbbbbb", task(1, subject="left"), **{".session-list": text})
    context = box.hook(source="resume", env=TEAMS).context
    assert "before the clear" in context and "left" not in context and not box.has()
    said = box.command("status", "--to", NEW, **TEAMS)
    assert f"{box.tasks}/{text.strip()} (shared)" in said.stdout


ODD_LISTS = ["", "\n", "..", "../session-aaaaaaaa", "a/b", ".x", "x" * 300, "a b", "a\0", "\udcff"]


@pytest.mark.parametrize("text", ODD_LISTS)
def test_what_names_no_list_of_a_team_is_ignored(box, text):
    box.store("session-aaaaaaaa", task(1, subject="another"))
    raw = text.encode("utf-8", "surrogateescape")
    box.store("session-bbbbbbbb", task(1, subject="own"), **{".session-list": raw})
    said = box.hook(source="resume", env=TEAMS)
    assert "own" in said.context and "another" not in said.context and said.stderr == ""


def test_without_teams_no_list_leads_to_another(box):
    box.store(OTHER, task(1, subject="another"))
    box.store(NEW, task(1, subject="own"), **{".session-list": OTHER})
    assert "own" in box.hook(source="resume").context
