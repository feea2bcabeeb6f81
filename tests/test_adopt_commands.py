"""status, adopt, install and uninstall: what a person types."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest
from adopt_support import HOOK, NEW, OLD, OTHER, Box, files, snapshot, task
from support import ABSENT

TOOLS = "CLAUDE_CODE_ENABLE_TODO_TOOLS"


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


@pytest.fixture
def door(box):
    """Install the program as its installer does: a copy, and a link to it for importing."""
    bin_, library = f"{box.home}/.local/bin", f"{box.home}/.local/lib/persistent-sessions"
    os.makedirs(bin_)
    os.makedirs(library)
    with open(HOOK, "rb") as f, open(f"{bin_}/task-adopt", "wb") as g:
        g.write(f.read())
    os.chmod(f"{bin_}/task-adopt", 0o755)
    os.symlink("../../bin/task-adopt", f"{library}/task_adopt.py")
    return f"{bin_}/task-adopt"


def settings(box):
    with open(f"{box.claude}/settings.json", encoding="utf-8") as f:
        return json.load(f)


def write_settings(box, text, name="settings.json"):
    with open(f"{box.claude}/{name}", "w", encoding="utf-8") as f:
        f.write(text)


def commands(box):
    groups = settings(box).get("hooks", {}).get("SessionStart", [])
    return [hook["command"] for group in groups for hook in group["hooks"]]


# ---- adopt ----------------------------------------------------------------


def test_adopt_takes_the_list_that_is_named(box):
    box.session(OLD)
    box.session(OTHER, task(1, subject="x"))
    assert box.command("adopt", "--from", OLD, "--to", NEW).status == 0
    assert files(f"{box.tasks}/{NEW}") == files(f"{box.tasks}/{OLD}")


def test_adopt_inside_a_session_means_that_session(box):
    box.session(OLD)
    assert box.command("adopt", "--from", OLD, CLAUDE_CODE_SESSION_ID=NEW).status == 0
    assert box.has()


def refused(box, *args, **env):
    """Return why; nothing may have changed."""
    before = snapshot(box.home)
    said = box.command("adopt", *args, **env)
    assert said.status == 1 and said.stdout == "" and snapshot(box.home) == before
    assert said.stderr.startswith("task-adopt: adopt: ") and said.stderr.count("\n") == 1
    return said.stderr


def test_adopt_never_replaces_a_list_be_it_empty(box):
    box.session(OLD)
    box.store(NEW)
    assert "never replaced" in refused(box, "--from", OLD, "--to", NEW)


def test_adopt_takes_nothing_from_a_running_session(box):
    box.session(OLD)
    box.record(OLD, os.getpid())
    assert str(os.getpid()) in refused(box, "--from", OLD, "--to", NEW)


def test_adopt_takes_nothing_from_one_that_comes_back_by_itself(box):
    box.session(OLD)
    box.witness("work", OLD)
    assert "work" in refused(box, "--from", OLD, "--to", NEW)


def test_adopt_takes_nothing_while_it_cannot_tell_who_runs(box):
    box.session(OLD)
    with open(f"{box.claude}/sessions", "w"):
        pass
    assert "sessions" in refused(box, "--from", OLD, "--to", NEW)


@pytest.mark.parametrize("tasks", [[], [task(1, "completed")]])
def test_adopt_says_when_there_is_nothing_to_adopt(box, tasks):
    box.store(OLD, *tasks)
    assert "no open task" in refused(box, "--from", OLD, "--to", NEW)


def test_adopt_says_when_there_is_no_such_list(box):
    assert OLD in refused(box, "--from", OLD, "--to", NEW)


@pytest.mark.parametrize("name", ["", "..", "a/b", NEW])
def test_adopt_wants_two_different_sessions(box, name):
    box.session(OLD)
    assert "two different sessions" in refused(box, "--from", name, "--to", NEW)
    assert "two different sessions" in refused(box, "--from", OLD)


def test_adopt_never_fills_a_shared_list(box):
    box.session(OLD)
    assert "shared" in refused(box, "--from", OLD, "--to", NEW, CLAUDE_CODE_TASK_LIST_ID="ours")


# ---- status ---------------------------------------------------------------


def test_status_gives_each_candidate_with_the_reason(box):
    box.session(OLD, task(1), ago=300)
    box.session(OTHER, task(1), task(2, "completed"), ago=200)
    box.session("far", task(1), cwd="/elsewhere")
    box.session("done", task(1, "completed"))
    box.session("runs", task(5))
    box.record("runs", os.getpid())
    lines = {line.split()[0]: line for line in box.command("status").stdout.splitlines()}
    assert "candidate" in lines[OTHER] and "1 of 2 open" in lines[OTHER]
    assert OTHER in lines[OLD][len(OLD) :] and str(os.getpid()) in lines["runs"]
    assert "no open task" in lines["done"] and "far" not in lines


@pytest.mark.parametrize("own", [True, False])
def test_status_names_the_list_of_this_session(box, own):
    if own:
        box.store(NEW)
    box.transcript(NEW)
    said = box.command("status", "--to", NEW).stdout
    assert said.count(NEW) == 1 and f"{box.tasks}/{NEW}" in said
    assert ("its own" if own else "none yet") in said


def test_status_says_whether_the_task_tools_are_on(box):
    assert "off" in box.command("status").stdout and "install" in box.command("status").stdout
    assert "off" not in box.command("status", **{TOOLS: "1"}).stdout
    box.command("install")
    assert "off" not in box.command("status").stdout


ON = [("1", True), ("true", True), ("0", False), ("false", False), ("", False), ("yes", False)]


@pytest.mark.parametrize("value, on", ON)
def test_only_a_value_that_claude_takes_turns_the_task_tools_on(box, value, on):
    assert ("tools  on\n" in box.command("status", **{TOOLS: value}).stdout) == on
    write_settings(box, json.dumps({"env": {TOOLS: value}}))
    for env in ({}, {TOOLS: "1"}, {TOOLS: "0"}):
        assert ("tools  on\n" in box.command("status", **env).stdout) == on


@pytest.mark.parametrize("text", ['{"env": {"%s": 1}}', '\ufeff{"env": {"%s": "1"}}'])
def test_a_number_or_a_mark_before_the_settings_is_no_matter(box, text):
    write_settings(box, text % TOOLS)
    assert "tools  on\n" in box.command("status").stdout


def test_settings_that_give_no_value_leave_the_environments(box):
    write_settings(box, json.dumps({"env": {TOOLS: None}}))
    assert "tools  on\n" in box.command("status", **{TOOLS: "1"}).stdout
    assert "tools  off" in box.command("status", **{TOOLS: "0"}).stdout


def test_status_in_an_empty_home_is_no_error(tmp_path):
    box = Box(tmp_path)
    subprocess.run(["rm", "-r", box.claude], check=True)
    assert box.command("status").status == 0


def status_into(box, where):
    """Run `status` with its output going to `where` in a shell; return what it says of itself."""
    script = f'{{ "$@"; echo "status $?" >&2; }} {where}'
    argv = ["sh", "-c", script, "sh", sys.executable, "-IS", HOOK, "status"]
    return subprocess.run(argv, env=box.env(), stderr=subprocess.PIPE, text=True).stderr


@pytest.mark.parametrize("lists", [1, 400])
def test_status_on_a_full_disk_says_so_in_one_line(box, lists):
    for n in range(lists):
        box.session(f"{n:08d}-0000-4000-8000-000000000000", task(1, "completed"))
    said = status_into(box, ">/dev/full")
    assert said == "task-adopt: status: No space left on device\nstatus 1\n"


@pytest.mark.parametrize("lists", [1, 400])
def test_status_is_quiet_when_its_reader_has_gone(box, lists):
    for n in range(lists):
        box.session(f"{n:08d}-0000-4000-8000-000000000000", task(1, "completed"))
    os.mkfifo(f"{box.home}/pipe")
    gone = f"<>{box.home}/pipe >{box.home}/pipe <&-"
    assert status_into(box, gone) == "status 0\n"


# ---- install --------------------------------------------------------------


def test_install_adds_the_hook_for_every_source_and_the_tools(box):
    assert box.command("install") == (0, "", "")
    (group,) = settings(box)["hooks"]["SessionStart"]
    assert group == {"hooks": [{"type": "command", "command": HOOK, "timeout": 10}]}
    assert settings(box)["env"] == {TOOLS: "1"}


def test_the_installed_command_is_the_hook(box, door):
    box.session(OLD)
    for installed in (HOOK, door):
        write_settings(box, "{}")
        subprocess.run([installed, "install"], env=box.env(), check=True)
        (command,) = commands(box)
        assert "open" in box.hook(argv=["sh", "-c", command]).context


def test_install_prefers_the_import_door_when_it_leads_to_the_same_file(box, door):
    subprocess.run([door, "install"], env=box.env(), check=True)
    library = f"{box.home}/.local/lib/persistent-sessions"
    code = f'import sys;sys.path.append("{library}");import task_adopt as m;sys.exit(m.main())'
    assert commands(box) == [shlex.join(["/usr/bin/python3", "-IS", "-c", code])]


def test_a_door_that_leads_to_another_file_is_not_used(box, door):
    box.command("install")
    assert commands(box) == [HOOK]


def test_install_replaces_what_it_installed_before_there_was_a_door(box, door):
    library = f"{box.home}/.local/lib/persistent-sessions/task_adopt.py"
    os.rename(library, f"{library}.away")
    subprocess.run([door, "install"], env=box.env(), check=True)
    assert commands(box) == [door]
    os.rename(f"{library}.away", library)
    subprocess.run([door, "install"], env=box.env(), check=True)
    assert len(commands(box)) == 1 and commands(box) != [door]


THEIRS = """{
  "model": "opus",
  "env": {
    "A": "1"
  },
  "hooks": {
    "Stop": [],
    "SessionStart": [
      {
        "matcher": "startup",
        "hooks": [
          {
            "type": "command",
            "command": "echo ü"
          }
        ]
      }
    ]
  },
  "unknown": {
    "n": 1.50,
    "big": 12345678901234567890123,
    "e": 1e400
  }
}
"""


def test_uninstall_gives_back_what_was_there(box):
    write_settings(box, THEIRS)
    box.command("install")
    assert commands(box) == ["echo ü", HOOK] and next(iter(settings(box))) == "model"
    box.command("uninstall")
    with open(f"{box.claude}/settings.json", encoding="utf-8") as f:
        assert f.read() == THEIRS


@pytest.mark.parametrize("text", ["{}", '{"env": {"B": "2"}}', '{"hooks": {"Stop": []}}'])
def test_uninstall_leaves_no_empty_parts(box, text):
    write_settings(box, text)
    box.command("install")
    box.command("uninstall")
    assert settings(box) == json.loads(text)


@pytest.mark.parametrize("change", [
    {"matcher": "startup"}, {"matcher": ""}, {"hooks": [{"type": "command", "command": "date"}]},
])  # fmt: skip
def test_uninstall_takes_the_hook_out_of_a_group_that_was_edited(box, change):
    write_settings(box, "{}")
    box.command("install")
    found = settings(box)
    (group,) = found["hooks"]["SessionStart"]
    theirs = change.get("hooks", [])
    group.update(change, hooks=[*theirs, {**group["hooks"][0], "timeout": 60}])
    write_settings(box, json.dumps(found))
    assert box.command("uninstall").status == 0
    assert settings(box) == ({"hooks": {"SessionStart": [{"hooks": theirs}]}} if theirs else {})


@pytest.mark.parametrize("group", ['{}', '{"hooks": []}', '{"matcher": "x", "hooks": []}'])
def test_uninstall_leaves_the_groups_of_others_as_they_are(box, group):
    text = f'{{"hooks": {{"SessionStart": [{group}]}}}}'
    write_settings(box, text)
    box.command("install")
    box.command("uninstall")
    assert settings(box) == json.loads(text)


def test_a_second_install_changes_nothing(box):
    write_settings(box, THEIRS)
    box.command("install")
    path = f"{box.claude}/settings.json"
    before = os.stat(path).st_ino, snapshot(box.claude)
    assert box.command("install").status == 0
    assert (os.stat(path).st_ino, snapshot(box.claude)) == before


def test_uninstall_where_nothing_was_installed_changes_nothing(box):
    write_settings(box, '{"env":{}, "hooks":{}}')
    before = snapshot(box.home)
    assert box.command("uninstall").status == 0 and snapshot(box.home) == before


def test_a_choice_of_the_user_about_the_tools_is_kept(box):
    write_settings(box, json.dumps({"env": {TOOLS: "0"}}))
    box.command("install")
    assert settings(box)["env"] == {TOOLS: "0"}
    box.command("uninstall")
    assert settings(box)["env"] == {TOOLS: "0"}


def test_a_link_is_followed_and_the_mode_kept(box):
    write_settings(box, THEIRS, "real.json")
    os.chmod(f"{box.claude}/real.json", 0o640)
    os.symlink("real.json", f"{box.claude}/settings.json")
    box.command("install")
    assert os.path.islink(f"{box.claude}/settings.json") and HOOK in commands(box)
    assert os.stat(f"{box.claude}/real.json").st_mode & 0o7777 == 0o640


@pytest.mark.skipif(os.getuid() != 0, reason=f"{ABSENT}root")
@pytest.mark.parametrize("text", ["{}", ""])
def test_what_root_writes_stays_its_owners(box, text):
    os.chown(box.claude, 1234, 1234)
    if text:
        write_settings(box, text)
        os.chown(f"{box.claude}/settings.json", 1234, 1234)
    assert box.command("install").status == 0
    assert os.stat(f"{box.claude}/settings.json").st_uid == 1234


def test_a_byte_order_mark_is_kept(box):
    write_settings(box, "\ufeff" + THEIRS)
    box.command("install")
    with open(f"{box.claude}/settings.json", "rb") as f:
        text = f.read()
    assert text.startswith(b"\xef\xbb\xbf{") and HOOK.encode() in text


BROKEN = [
    "",
    "{",
    "[]",
    "null",
    '"x"',
    '{"hooks": []}',
    '{"env": null}',
    '{"hooks": {"SessionStart": {}}}',
]
BROKEN += ['{"hooks": {"SessionStart": "x"}}', '{"env": "x"}', "\udcff"]


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_settings_that_are_not_understood_are_left_alone(box, text, verb):
    with open(f"{box.claude}/settings.json", "wb") as f:
        f.write(text.encode("utf-8", "surrogateescape"))
    before = snapshot(box.home)
    said = box.command(verb)
    assert said.status == 1 and said.stderr.count("\n") == 1 and "settings.json" in said.stderr
    assert snapshot(box.home) == before


def test_a_full_disk_leaves_the_old_settings_and_no_litter(box):
    write_settings(box, THEIRS)
    limit = "import resource as r,os,sys;r.setrlimit(r.RLIMIT_FSIZE,(99,99));"
    limit += "os.execv(sys.argv[1],sys.argv[1:])"
    argv = [sys.executable, "-c", limit, HOOK, "install"]
    done = subprocess.run(argv, env=box.env(), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "too large" in done.stderr and done.stderr.count("\n") == 1
    assert files(box.claude) == {"settings.json": THEIRS.encode()}


MEANWHILE = """import os,sys
sync,times,path=os.fsync,int(sys.argv[2]),sys.argv[3]
def fsync(fd):
    global times
    sync(fd)
    times-=1
    if times>=0:
        with open(path+".theirs","w") as f:
            f.write('{"model": "%d"}' % times)
        os.replace(path+".theirs",path)
os.fsync=fsync
sys.path.append(sys.argv[1])
import task_adopt as m
sys.exit(m.main(sys.argv[4:]))"""


def changed_meanwhile(box, verb, times):
    """Run `verb`; so many times another program replaces the settings before it can."""
    path = f"{box.claude}/settings.json"
    argv = [sys.executable, "-IS", "-c", MEANWHILE, os.path.dirname(HOOK), str(times), path, verb]
    return subprocess.run(argv, env=box.env(), stderr=subprocess.PIPE, text=True, timeout=60)


@pytest.mark.parametrize("before", ["", '{"model": "opus"}'])
@pytest.mark.parametrize("times", [1, 2])
def test_what_another_program_changes_meanwhile_is_kept(box, before, times):
    if before:
        write_settings(box, before)
    done = changed_meanwhile(box, "install", times)
    assert (done.returncode, done.stderr) == (0, "")
    assert settings(box)["model"] == "0" and commands(box) == [HOOK]
    assert os.listdir(box.claude).count("settings.json") == len(files(box.claude)) == 1


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_settings_that_do_not_come_to_rest_are_left_to_the_other_program(box, verb):
    write_settings(box, '{"hooks": {"SessionStart": []}}')
    box.command("install")
    if verb == "install":
        write_settings(box, "{}")
    done = changed_meanwhile(box, verb, 1000)
    assert done.returncode == (1 if verb == "install" else 0)
    assert done.stderr.count("\n") == done.returncode
    assert "model" in settings(box) and commands(box) == []
    assert set(files(box.claude)) == {"settings.json"}


def test_install_makes_claudes_folder_on_a_new_machine(box):
    subprocess.run(["rm", "-r", box.claude], check=True)
    assert box.command("install").status == 0 and commands(box) == [HOOK]


@pytest.mark.parametrize("target", ["gone/settings.json", "here/settings.json", "settings.json"])
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_settings_behind_a_link_that_leads_nowhere_are_refused(box, verb, target):
    os.mkdir(f"{box.home}/here")
    place = f"{box.home}/{target}" if "/" in target else target  # the last one is itself
    os.symlink(place, f"{box.claude}/settings.json")
    before = sorted(os.walk(box.home))
    said = box.command(verb)
    assert (said.status, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    assert f"{box.claude}/settings.json is a link that leads nowhere" in said.stderr
    assert sorted(os.walk(box.home)) == before


def test_so_is_a_folder_of_claude_that_leads_nowhere(box):
    os.rename(box.claude, f"{box.home}/away")
    os.symlink(f"{box.home}/gone", box.claude)
    said = box.command("install")
    assert said.status == 1 and f"{box.claude} is a link that leads nowhere" in said.stderr
    assert not os.path.exists(f"{box.home}/gone")


def test_install_takes_a_config_folder_that_is_not_a_whole_path(box):
    assert box.command("install", CLAUDE_CONFIG_DIR="new/claude").status == 0
    assert os.path.exists(f"{box.project}/new/claude/settings.json")


def test_install_follows_the_moved_config_folder(box, tmp_path):
    assert box.command("install", CLAUDE_CONFIG_DIR=f"{tmp_path}").status == 0
    assert os.path.exists(tmp_path / "settings.json")


# ---- The command line -----------------------------------------------------


@pytest.mark.parametrize("how", ["-h", "--help"])
def test_help_names_every_command(box, how):
    said = box.command(how)
    assert said.status == 0 and said.stderr == ""
    assert all(f"task-adopt {verb}" in said.stdout for verb in ("status", "adopt", "install"))


def test_the_version_is_one_line(box):
    assert box.command("--version").stdout.split()[0] == "task-adopt"


@pytest.mark.parametrize(
    "args", ["x", "adopt --from", "adopt --fro A", "status A", "--from A", "install -v x"]
)
def test_a_usage_error_is_one_line_and_status_2(box, args):
    said = box.command(*args.split())
    assert (said.status, said.stdout, said.stderr.count("\n")) == (2, "", 1)


def test_hook_command_is_what_install_writes(box):
    code = "import sys;sys.path.append(sys.argv[1]);import task_adopt as m;print(m.hook_command())"
    argv = [sys.executable, "-IS", "-c", code, os.path.dirname(HOOK)]
    done = subprocess.run(argv, env=box.env(), stdout=subprocess.PIPE, text=True, check=True)
    box.command("install")
    assert commands(box) == [done.stdout.rstrip("\n")]
