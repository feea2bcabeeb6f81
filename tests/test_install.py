"""install.sh in a private home, without a user manager: files and what it says about them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from support import ROOT, SESSIONS, wait_until

import persistent_sessions as program

pytestmark = pytest.mark.tmux

INSTALLED = (
    ".local/bin/persistent-sessions",
    ".local/bin/task-adopt",
    ".local/lib/persistent-sessions/persistent_sessions.py",
    ".local/lib/persistent-sessions/task_adopt.py",
    ".config/systemd/user/persistent-sessions.service",
    ".config/systemd/user/persistent-sessions.timer",
)


@pytest.fixture
def checkout(private):
    """Return a copy of what install.sh needs of this repository."""
    folder = private / "clone"
    folder.mkdir()
    for name in ("persistent_sessions.py", "task_adopt.py", "install.sh"):
        shutil.copy(os.path.join(ROOT, name), folder)
    shutil.copytree(os.path.join(ROOT, "units"), folder / "units")
    return folder


@pytest.fixture
def install(checkout, home):
    """Run install.sh of the copy as the user of the private home."""

    def run(*args, env=None, cwd=None):
        return subprocess.run(
            [str(checkout / "install.sh"), *args],
            env={**os.environ, **(env or {})},
            cwd=cwd or checkout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=100,
            start_new_session=True,
        )

    return run


def tree(folder):
    """Return each file below `folder` with what would show that it was touched."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            seen = os.lstat(full)
            found[os.path.relpath(full, folder)] = (seen.st_ino, seen.st_mtime_ns, seen.st_mode)
    return found


def test_everything_is_put_in_its_place(install, home):
    said = install().stdout
    for name in INSTALLED:
        assert (home / name).exists() and f"install.sh: installed {home / name}\n" in said
    assert (home / INSTALLED[0]).stat().st_mode & 0o777 == 0o755


def test_the_importable_names_lead_to_the_installed_copies(install, home):
    install()
    door, program = (str(home / INSTALLED[n]) for n in (2, 0))
    assert os.path.islink(door) and os.path.samefile(door, program)
    compiled = os.listdir(f"{os.path.dirname(door)}/__pycache__")
    assert any(n.startswith("persistent_sessions.") for n in compiled)


def test_a_second_run_touches_nothing_and_says_so(install, home):
    install()
    before = tree(home)
    again = install()
    changed = {n for n, seen in tree(home).items() if before.get(n) != seen}
    assert [n for n in changed if "/state/" not in n and "/__pycache__/" not in n] == []
    assert again.stdout.count("install.sh: unchanged") == len(INSTALLED)
    assert "install.sh: installed" not in again.stdout


def test_an_upgrade_replaces_the_file_and_leaves_the_old_one_to_its_reader(install, home, checkout):
    install()
    with open(home / INSTALLED[0], encoding="utf-8") as running:
        (checkout / "persistent_sessions.py").write_text(old := running.read() + "# newer\n")
        said = install().stdout
        running.seek(0)
        assert running.read() + "# newer\n" == old
    assert (home / INSTALLED[0]).read_text() == old
    assert said.count("install.sh: installed") == 1


def test_a_wrong_mode_is_mended(install, home):
    install()
    (home / INSTALLED[0]).chmod(0o600)
    assert f"install.sh: installed {home / INSTALLED[0]}\n" in install().stdout
    assert os.access(home / INSTALLED[0], os.X_OK)


def test_a_link_in_the_home_stays_a_link(install, home):
    kept = home / "dotfiles" / "service"
    kept.parent.mkdir()
    kept.write_text("old")
    (home / ".config/systemd/user").mkdir(parents=True)
    (home / INSTALLED[4]).symlink_to(kept)
    install()
    assert (home / INSTALLED[4]).is_symlink() and "ExecStart" in kept.read_text()


@pytest.mark.parametrize("kind", ["socket", "folder"])
def test_what_is_no_file_is_not_replaced(install, home, kind):
    """A unit that was masked is a link to /dev/null, which root could replace by our unit."""
    other, unit = home / "other", home / INSTALLED[5]
    unit.parent.mkdir(parents=True)
    unit.symlink_to(other)
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "socket":
            bound.bind(str(other))
        else:
            other.mkdir()
        before = other.lstat()
        done = install()
        assert done.returncode == 1
        assert done.stderr == f"install.sh: {other}, where {unit} is to be, is no file\n"
        after = other.lstat()
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert kind == "socket" or not list(other.iterdir())


def test_units_follow_xdg_config_home(install, home):
    install(env={"XDG_CONFIG_HOME": str(home / "elsewhere")})
    assert (home / "elsewhere/systemd/user/persistent-sessions.timer").exists()
    assert not (home / ".config").exists()


def test_it_runs_from_any_folder_and_under_a_strict_umask(checkout, home):
    argv = ["sh", "-c", f"umask 077; cd / && exec {checkout}/install.sh"]
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
    assert (home / INSTALLED[4]).stat().st_mode & 0o777 == 0o644


def test_what_could_not_be_done_shows_in_the_status_and_the_list_comes_all_the_same(install):
    done = install()  # there is no user manager here
    assert done.returncode == 1 and "NAME" in done.stdout
    assert done.stderr.endswith("install.sh: the installation is not complete, see above\n")


def test_a_folder_missing_from_path_is_named(install, home):
    said = install(env={"PATH": "/usr/bin:/bin"}).stderr
    assert f"{home}/.local/bin is not on PATH in this shell" in said
    assert "is not on PATH in this shell" not in install().stderr


def test_without_a_claude_it_installs_and_points_to_the_demo(install, home):
    done = install(env={"PATH": f"{home}/.local/bin:/usr/bin:/bin"})
    assert "claude: not found" in done.stderr and "demo" in done.stderr
    assert (home / INSTALLED[0]).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_demo_that_is_ended_leaves_nothing(ps, number):
    demo = ps.start("demo", env={"PS_TRACE": "1"})
    folder = re.search(r"/tmp/ps-demo\.\w+", demo.stderr.readline()).group()
    sessions = f"{folder}/home/.local/state/persistent-sessions"
    assert wait_until(lambda: os.path.exists(f"{sessions}/alpha.run"))
    os.kill(demo.pid, number)
    assert demo.wait(20) == 130 and not os.path.exists(folder)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert folder not in running


@pytest.mark.parametrize("args", [["--no-such"], ["--uninstall", "x"]])
def test_a_wrong_argument_is_refused_before_anything_happens(install, home, args):
    before = tree(home)
    done = install(*args)
    assert done.returncode == 2 and "usage:" in done.stderr and tree(home) == before


def test_a_home_of_somebody_else_is_refused(install, private):
    if os.getuid() != 0:
        pytest.skip("absent here: root")
    other = private / "other"
    other.mkdir()
    os.chown(other, 12345, 12345)
    done = install(env={"HOME": str(other)})
    assert done.returncode == 1 and "another user" in done.stderr and not tree(other)


def test_a_home_that_is_a_link_is_whose_it_leads_to(install, home, private):
    """An administrator moved it and left a link, which belongs to root."""
    if os.getuid() != 0:
        pytest.skip("absent here: root")
    link = private / "moved"
    link.symlink_to(home)
    os.lchown(link, 12345, 12345)
    said = install(env={"HOME": str(link)}).stdout
    assert f"install.sh: installed {link / INSTALLED[0]}\n" in said


def test_uninstall_takes_away_what_was_written(install, home):
    before = set(tree(home))
    install()
    install("--uninstall")
    left = {n for n in set(tree(home)) - before if not n.startswith(".local/state/")}
    assert left <= {".bashrc", ".claude/settings.json"}  # files that are not ours alone
    for name in left:
        text = (home / name).read_text()
        assert "persistent-sessions" not in text and "task-adopt" not in text


def test_uninstall_keeps_state_settings_and_own_drop_ins(install, home):
    install()
    kept = [
        home / ".local/state/persistent-sessions/work.id",
        home / ".config/persistent-sessions/config.json",
        home / ".config/systemd/user/persistent-sessions.service.d/mine.conf",
        home / ".claude/projects/x/y.jsonl",
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    install("--uninstall")
    assert [path for path in kept if not path.exists()] == []


def test_uninstall_keeps_the_program_of_a_hook_that_it_cannot_take_out(install, home):
    install()
    settings = home / ".claude" / "settings.json"
    whole = settings.read_text() if settings.exists() else "{}"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("{")
    done = install("--uninstall")
    kept = [name for name in INSTALLED if os.path.lexists(home / name)]
    assert kept == [name for name in INSTALLED if "adopt" in name] and done.returncode == 1
    assert "kept" in done.stderr and settings.read_text() == "{"
    settings.write_text(whole)
    install("--uninstall")
    assert not [name for name in INSTALLED if os.path.lexists(home / name)]


def test_uninstall_works_when_the_installed_copy_is_gone(install, home):
    install()
    (home / INSTALLED[0]).unlink()
    install("--uninstall")
    assert not [name for name in INSTALLED if os.path.lexists(home / name)]
    assert "persistent-sessions" not in (home / ".bashrc").read_text()


def test_a_checkout_installs_without_the_shell_script(ps, home):
    ps("install")
    assert [name for name in INSTALLED if not (home / name).exists()] == []
    with open(SESSIONS, encoding="utf-8") as f:
        assert (home / INSTALLED[0]).read_text(encoding="utf-8") == f.read()


def test_the_script_changes_nothing_after_the_program_installed_itself(install, ps, home):
    ps("install")
    assert "install.sh: installed" not in install().stdout


# ---- What is compiled alone ------------------------------------------------

UNKNOWN_NAMES = """
import dis, sys, types
def known(code, names):
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL" and each.argval not in names:
            print(code.co_name, each.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            known(inner, names)
names = {*vars(m), *vars(__import__("builtins")), "__file__"}
for name, value in vars(m).items():
    if isinstance(value, types.FunctionType) and name != "dispatch":
        known(value.__code__, names)
print(len(vars(m)), "cmd_demo" in vars(m), m.__cached__)
"""


def through_door(home, part, *words, code="m.exit_with(m.main())", cwd="/"):
    """Run what is installed as a unit, a pane or a hook does."""
    library = home / ".local/lib/persistent-sessions"
    door = program.DOOR.partition("m.exit_with")[0] % (library, part, library)
    argv = ["/usr/bin/python3", "-IS", "-c", door + code, *words]
    return subprocess.run(argv, capture_output=True, encoding="utf-8", cwd=cwd, timeout=100)


def test_each_part_holds_all_that_its_command_comes_to_and_little_more(ps, home):
    ps("install")
    for part in program.PARTS:
        *unknown, last = through_door(home, part, code="\n" + UNKNOWN_NAMES).stdout.splitlines()
        assert unknown == []
        count, others, cache = last.split()
        assert others == "False" and f"/parts/{part}/__pycache__/" in cache
        assert int(count) < 0.8 * len(vars(program))


def test_a_part_of_another_program_than_the_installed_one_is_not_used(ps, home):
    ps("install")
    code = 'print("cmd_demo" in vars(m))'
    assert through_door(home, "start", code=code).stdout == "False\n"
    with open(home / INSTALLED[0], "a", encoding="utf-8") as f:
        f.write("# a newer one\n")
    assert through_door(home, "start", code=code).stdout == "True\n"


def test_a_part_that_is_not_there_or_damaged_stops_nothing(ps, home):
    ps("install")
    parts = home / ".local/lib/persistent-sessions/parts"
    (cache,) = (parts / "status/__pycache__").iterdir()
    whole = ps("status").stdout
    for damage in (b"", b"\0" * 4096):
        cache.write_bytes(damage)
        assert through_door(home, "status", "status").stdout == whole
    shutil.rmtree(parts)
    assert through_door(home, "status", "status").stdout == whole


def test_a_part_that_is_asked_for_another_command_is_the_whole_program(ps, home):
    ps("install")
    for words in (["--version"], ["status"], ["list"]):
        done = through_door(home, "start", *words)
        assert done.returncode == 0 and done.stdout == ps(*words).stdout and not done.stderr


def test_a_link_of_an_odd_name_in_the_folder_is_no_shim(ps, home):
    """Python calls a program without a file "-c", and a folder may hold anything."""
    ps("install")
    (home / "-c").symlink_to("/bin/true")
    done = through_door(home, "no-part", "status", cwd=home)
    assert done.stdout == ps("status").stdout != ""


def test_what_python_does_to_a_locale_is_not_recorded(ps, home, claude, monkeypatch):
    monkeypatch.delenv("LANG")
    ps("install")
    dropin = home / ".config/systemd/user/persistent-sessions.service.d/environment.conf"
    assert "PATH" in dropin.read_text() and "LC_CTYPE" not in dropin.read_text()


# ---- A later installation --------------------------------------------------


def test_what_the_unit_knows_survives_an_update_from_a_bare_shell(ps, home, claude):
    (home / "tools").mkdir()
    known = {"CLAUDE_CONFIG_DIR": str(home / "other"), "PATH": f"{home}/tools:{os.environ['PATH']}"}
    ps("install", env=known)
    dropin = home / ".config/systemd/user/persistent-sessions.service.d/environment.conf"
    before = program.parse_dropin(dropin.read_text())
    bare = f"/usr/bin:/bin:{home}/not-yet"  # a folder of this shell's may come later
    done = ps("install", env={"PATH": bare, "TZ": "Asia/Tokyo"})
    after = program.parse_dropin(dropin.read_text())
    assert after["CLAUDE_CONFIG_DIR"] == known["CLAUDE_CONFIG_DIR"]
    assert after["PS_CLAUDE"] == before["PS_CLAUDE"] != "" and after["TZ"] == "Asia/Tokyo"
    assert str(home / "tools") in after["PATH"].split(":")
    assert after["PATH"].startswith(bare)
    assert "CLAUDE_CONFIG_DIR" in done.stderr and str(dropin) in done.stderr


def test_an_odd_umask_opens_nothing_that_is_run_to_others(home, claude):
    argv = [sys.executable, "-IS", SESSIONS, "install"]
    subprocess.run(["sh", "-c", 'umask 0; exec "$@"', "sh", *argv], capture_output=True)
    found = ["find", home / ".local", home / ".config", "-perm", "/022", "!", "-type", "l"]
    assert subprocess.run(found, capture_output=True, text=True).stdout == ""
    argv[-1] = "list"
    for mask in ("0", "0777"):
        shutil.rmtree(home / ".local/state")
        subprocess.run(["sh", "-c", f'umask {mask}; exec "$@"', "sh", *argv], capture_output=True)
        mode = (home / ".local/state/persistent-sessions").stat().st_mode
        assert mode & 0o777 == 0o700, mask


@pytest.mark.parametrize("name", ["DOM\\user", 'a"b', "it's", "a b;c$d%e"])
def test_the_door_opens_in_a_home_of_any_name(home, claude, monkeypatch, name):
    odd = home / name
    (odd / ".local/bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(odd))
    argv = [sys.executable, "-IS", SESSIONS, "install"]
    subprocess.run(argv, capture_output=True)
    installed = odd / ".local/bin/persistent-sessions"
    shutil.copy(SESSIONS, installed)
    library = odd / ".local/lib/persistent-sessions"
    library.mkdir(parents=True, exist_ok=True)
    link = library / "persistent_sessions.py"
    link.unlink(missing_ok=True)
    link.symlink_to(installed)
    shutil.copy(os.path.join(ROOT, "task_adopt.py"), library)
    script = "import sys; sys.path.append(sys.argv[1]); import persistent_sessions as m\n"
    script += "import json, os; hooks = m.hook_commands(m.Paths.from_env(os.environ))\n"
    script += "print(json.dumps([m.own_argv('status'), *hooks['SessionStart']]))"
    asked = [sys.executable, "-IS", "-c", script, str(library)]
    words, *hooks = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    assert "-c" in words
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "no sessions\n", done.stderr
    for hook in hooks:
        done = subprocess.run(["sh", "-c", hook], input="{}", capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(hooks) == 2


def test_a_second_name_of_an_rc_file_is_spoken_of(ps, home, claude):
    (home / "dotfile").write_text("a=1\n")
    os.link(home / "dotfile", home / ".bashrc")
    assert f"{home}/.bashrc had another name" in ps("install").stderr
    assert "another name" not in ps("install").stderr
