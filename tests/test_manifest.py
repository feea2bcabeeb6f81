"""The manifest: read from git or a file, bad rows named, the last good copy never lost."""

from __future__ import annotations

import http.server
import json
import os
import pwd
import shutil
import subprocess
import threading

import pytest
import sessions
import support
from sessions import clone, commit, configure, row, state

import persistent_sessions as program


def names(ps, **how):
    done = ps("manifest", **how)
    rows = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return [line.split("\t")[0] for line in rows], done


def test_the_manifest_is_what_the_remote_branch_says(ps, home):
    work = clone(row("api") + "\n")
    (work / f"{sessions.NAME}.tsv").write_text(row("dirty") + "\n")
    assert names(ps)[0] == ["api"] and names(ps)[1].returncode == 0


@pytest.mark.parametrize("ref", ["refs/remotes/origin/main", "origin/main"])
def test_a_merged_row_is_there_after_a_fetch_and_no_command_waits_for_it(ps, home, ref):
    configure(manifest={"clone": str(clone(row("api") + "\n")), "ref": ref})
    commit(home / "upstream", row("api") + "\n" + row("web") + "\n")
    assert names(ps)[0] == ["api"]
    ps("start", env={"PS_UNIT": "1", "PATH": "/usr/bin:/bin"})
    assert names(ps)[0] == ["api", "web"]


def test_only_the_unit_fetches(ps, home):
    clone("")
    commit(home / "upstream", row("web") + "\n")
    for command in (["start"], ["list"], ["manifest"]):
        ps(*command)
    assert names(ps)[0] == []


def test_a_fetch_that_fails_is_no_error(ps, home):
    clone("# none\n")
    (home / "upstream").rename(home / "gone")
    assert ps("start", env={"PS_UNIT": "1"}).returncode == 0


def test_inherited_git_variables_do_not_lead_astray(ps, home):
    clone(row("api") + "\n")
    env = {"GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/", "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    assert names(ps, env=env)[0] == ["api"]


@pytest.mark.parametrize("way", ["clone", "link", "clone/"])
def test_a_clone_of_root_is_read_by_another_user(ps, home, way):
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to own a clone that somebody else reads")
    clone("one\t/tmp\t-\t-\tnobody\n")
    (home / "link").symlink_to("clone")
    configure(manifest={"clone": f"{home}/{way}"})
    os.chmod(home.parent, 0o755)
    subprocess.run(["chmod", "-R", "a+rX", str(home)], check=True)
    (home / "config").mkdir()
    (home / f"config/{sessions.NAME}").mkdir()
    (home / ".config" / sessions.NAME / "config.json").rename(
        home / f"config/{sessions.NAME}/config.json"
    )
    (home.parent / "s").mkdir(mode=0o777)
    (home.parent / "s").chmod(0o777)
    env = {"XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home.parent / "s")}
    copy = shutil.copy(support.SESSIONS, home.parent)
    argv = ["/usr/bin/python3", "-IS", copy, "manifest"]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, user=65534)
    assert done.returncode == 0 and done.stdout.startswith(b"one\t"), done.stderr


@pytest.mark.parametrize("theirs", ["directory", "file", "named"])
def test_a_strangers_git_folder_in_a_folder_of_root_is_refused(ps, home, theirs):
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to give a clone away")
    inside = clone(row("api") + "\n") / ".git"
    assert ps("manifest").returncode == 0
    if theirs != "directory":
        inside.rename(home / "real")
        inside.write_text("gitdir: ../real\n")
        assert ps("manifest").returncode == 0
    os.chown(home / "real" if theirs == "named" else inside, 65534, 65534)
    done = ps("manifest")
    assert done.returncode == 1 and "belongs to another user" in done.stderr


def test_a_clone_of_anybody_else_is_refused(ps, home):
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to give a clone away")
    work = clone(row("api") + "\n")
    os.chown(work, 65534, 65534)
    done = ps("manifest")
    assert done.returncode == 1 and "belongs to another user" in done.stderr


@pytest.mark.parametrize("trouble", ["missing", "empty", "unparsable", "no branch", "nul"])
def test_a_manifest_that_cannot_be_used_leaves_the_last_good_copy_in_force(ps, home, trouble):
    clone(row("api") + "\n")
    assert names(ps)[0] == ["api"]
    texts = {"empty": "", "unparsable": "no tabs here\n", "nul": "a\0b\t/x\n"}
    if trouble in texts:
        commit(home / "upstream", texts[trouble])
        subprocess.run(["git", "-C", str(home / "clone"), "fetch", "-q"], check=True)
    elif trouble == "missing":
        (home / "clone").rename(home / "away")
    else:
        where = ["git", "-C", str(home / "clone")]
        subprocess.run([*where, "update-ref", "-d", "refs/remotes/origin/main"], check=True)
    found, done = names(ps)
    assert found == ["api"] and done.returncode == 1 and "last good copy" in done.stderr
    assert "api" in (state() / "manifest.tsv").read_text()


def test_another_users_row_of_the_same_name_is_no_earlier_line(ps, home):
    mine = pwd.getpwuid(os.getuid()).pw_name
    sessions.declare(
        f"api\t{home}/theirs\t-\t-\tnobody-{mine}",
        f"api\t{home}/api\t-\t-\t{mine}",
    )
    done = ps("start", "--dry-run")
    assert done.stdout.count("api: LAUNCH") == 1, done.stdout
    assert "an earlier line" not in done.stderr and done.returncode == 0, done.stderr


def test_a_row_does_not_take_over_what_is_open_in_another_folder(ps, home):
    """Its conversation would be resumed in the row's folder, with the row's permissions."""
    sessions.declare(row("app", "fleet"), row("web"))
    (home / "work").mkdir()
    (home / "link").symlink_to("work")
    state().mkdir(0o700, parents=True)
    (state() / "registry.tsv").write_text(f"app\t{home}/link\nweb\t{home}/web/\n")
    done = ps("list", "--json")
    shown = {s["name"]: s for s in json.loads(done.stdout)["sessions"]}
    assert shown["app"]["directory"] == str(home / "work") and not shown["app"]["declared"]
    assert shown["web"]["declared"]
    assert done.returncode == 1 and f"app is open in {home}/work" in done.stderr
    ps("retire", "app")
    done = ps("start", "app", "--dry-run")
    assert done.stdout.startswith("app: LAUNCH") and not done.stderr, done.stderr


def test_a_row_whose_disk_is_not_mounted_stays_in_the_list(ps, home):
    """Whose its folder is cannot be seen: the nearest folder above it is somebody else's."""
    disk = "/"
    if os.getuid() == 0:
        disk = f"{home}/disk/"
        os.makedirs(disk)
        os.chown(disk, 65534, 65534)
    missing = f"{disk}not-mounted-here/app"
    sessions.declare(f"app\t{missing}\t-\t-\t-", f"other\t{missing}\t-\t-\t-")
    shutil.rmtree(f"{disk}not-mounted-here", ignore_errors=True)
    sessions.file_id("app", sessions.new_id(1))
    done = ps("start", "--dry-run")
    assert done.stdout.startswith("app: GONE") and "other" not in done.stdout
    assert done.returncode == 1


def test_only_the_folders_of_the_named_rows_are_looked_at(ps, home):
    """A hook does not wait for a disk that another row is on."""
    sessions.declare(row("api"), row("web"))
    ps("list")
    paths = program.Paths.from_env(os.environ)
    assert set(program.read_copies(paths, {"web"})) == {"web"}
    assert set(program.read_copies(paths)) == {"api", "web"}


@pytest.mark.parametrize("what", ["config.json", "persistent-sessions"])
def test_a_configuration_behind_a_dangling_link_is_the_last_good_one(ps, home, what):
    path = configure(manifest={"file": str(home / "m.tsv")})
    (home / "m.tsv").write_text(row("api") + "\n")
    assert names(ps)[0] == ["api"]
    linked = path if what == "config.json" else path.parent
    linked.rename(home / "dotfiles")
    linked.symlink_to(home / "dotfiles")
    assert names(ps)[0] == ["api"]
    (home / "dotfiles").rename(home / "not mounted")
    found, done = names(ps)
    assert found == ["api"] and done.returncode == 1 and "leads nowhere" in done.stderr


def test_the_good_rows_of_a_torn_registry_stay(ps, home):
    state().mkdir(0o700, parents=True)
    (home / "work").mkdir()
    path = state() / "registry.tsv"
    path.write_bytes(f"work\t{home}/work\t[]\n".encode() + b"\0" * 3)
    done = ps("start", "--dry-run")
    assert "work: LAUNCH" in done.stdout and "registry line 2" in done.stderr
    assert done.returncode == 1
    assert ps("retire", "work").returncode == 0
    assert b"\0\0\0" in path.read_bytes()  # what is not understood is not removed


def test_comments_alone_are_a_valid_empty_manifest(ps, home):
    clone(row("api") + "\n")
    names(ps)
    commit(home / "upstream", "# nothing any more\n")
    subprocess.run(["git", "-C", str(home / "clone"), "fetch", "-q"], check=True)
    assert names(ps)[0] == [] and names(ps)[1].returncode == 0


def test_no_manifest_is_a_normal_state(ps):
    assert ps("start").returncode == 0 and ps("manifest").returncode == 0


def test_a_file_from_another_system_is_read_row_by_row(ps, home):
    (home / "api").mkdir()
    path = home / "m.tsv"
    good = row("api").replace("\t-\t-\t-", "")
    lines = [
        "# comment",
        "",
        good,
        "short",
        f"spaces {home}/x",
        good,
        "theirs\t/tmp\t-\t-\tsomebody",
        "rel\tx/y",
        "tilde\t~/x",
        "home\t$HOME/x",
    ]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    configure(manifest={"file": str(path)})
    listed = sessions.listed(ps)
    assert set(listed) == {"api"} and listed["api"]["directory"] == str(home / "api")
    done = ps("start", "--dry-run")
    assert done.returncode == 1
    for number in (4, 5, 6, 8, 9, 10):
        assert f"manifest line {number}: " in done.stderr
    assert "line 7" not in done.stderr


def test_a_hung_git_does_not_hold_a_run_for_long(ps, home):
    clone(row("api") + "\n")
    names(ps)
    (home / "api").mkdir()
    git = home / ".local/bin/git"
    git.write_text("#!/bin/sh\nexec sleep 100\n")
    git.chmod(0o755)
    found, done = names(ps)
    assert found == ["api"] and "no answer in 20 s" in done.stderr


def test_a_pull_at_the_same_moment_is_never_half_seen(ps, home):
    clone(row("api") + "\n")
    stop = threading.Event()

    def pull():
        at = 0
        while not stop.is_set():
            at += 1
            commit(home / "upstream", row("api") + f"\n# {at}\n")
            subprocess.run(["git", "-C", str(home / "clone"), "pull", "-q"], check=True)

    puller = threading.Thread(target=pull)
    puller.start()
    results = [names(ps) for _ in range(10)]
    stop.set()
    puller.join()
    assert all(found == ["api"] and done.returncode == 0 for found, done in results)


BROKEN = [
    "{",
    "[]",
    '{"claude": 1}',
    '{"claude": {"start_args": "x"}}',
    "\0",
    '{"network":{"wait_s":-1}}',
    '{"tmux":{"socket":"~/s"}}',
    '{"claude":{"path":"bin/claude"}}',
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_config_keeps_the_last_good_one(ps, home, text):
    path = configure(manifest={"file": str(home / "m.tsv")})
    (home / "m.tsv").write_text(row("api") + "\n")
    (home / "api").mkdir()
    assert ps("start", "--dry-run").returncode == 0
    path.write_text(text)
    done = ps("start", "--dry-run")
    assert done.returncode == 1 and "last good copy" in done.stderr
    assert done.stdout.startswith("api: LAUNCH")


@pytest.mark.tmux
def test_without_a_copy_a_broken_config_gives_no_permission(ps, claude, home):
    log = sessions.argv_log()
    configure().write_text("{")
    (home / "work").mkdir()
    done = ps("open", cwd=home / "work")
    assert "config.json" in done.stderr
    assert "--dangerously-skip-permissions" not in sessions.launches(log)[0]["argv"]


def test_an_unknown_key_is_one_warning(ps):
    configure(claude={"colour": "red"})
    done = ps("start")
    assert done.returncode == 0 and done.stderr.count("'claude.colour'") == 1


def test_what_is_wrong_with_another_users_row_is_that_users_business(ps, home):
    theirs = [
        "bobs\t/tmp\t-\tNO-ID\tsomebody",
        "b.ad\t/tmp\t-\t-\tsomebody",
        "api\tx\t-\t-\tsomebody",
    ]
    sessions.declare(row("api"), *theirs, "ours\t/tmp\t-\tNO-ID\t" + os.environ["USER"])
    done = ps("manifest")
    assert done.stderr.count("manifest line") == 1 and "manifest line 5" in done.stderr
    assert set(sessions.listed(ps)) == {"api"}


@pytest.fixture
def asking(home):
    """Serve a repository that wants a password; return its address."""

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/x"
    server.shutdown()
    server.server_close()


def test_a_fetch_asks_nobody_for_a_password(ps, home, asking):
    work = clone(row("api") + "\n")
    subprocess.run(["git", "-C", str(work), "remote", "set-url", "origin", asking], check=True)
    ask = home / "ask"
    ask.write_text(f"#!/bin/sh\necho asked >>{home}/asked\n")
    ask.chmod(0o755)
    subprocess.run(["git", "config", "--global", "core.askPass", str(ask)], check=True)
    done = ps("start", env={"PS_UNIT": "1", "SSH_ASKPASS": str(ask), "GIT_ASKPASS": str(ask)})
    assert "could not be fetched" in done.stderr and not (home / "asked").exists()


@pytest.mark.parametrize("where", ["local", "global"])
def test_a_fetch_uses_the_ssh_that_the_clone_is_configured_with(ps, home, where):
    work = clone(row("api") + "\n")
    commit(home / "upstream", row("api") + "\n" + row("web") + "\n")
    address = f"git@fleet.invalid:{home}/upstream"
    subprocess.run(["git", "-C", str(work), "remote", "set-url", "origin", address], check=True)
    ssh = home / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    words = ["git", "-C", str(work), "config", f"--{where}", "core.sshCommand", str(ssh)]
    subprocess.run(words, check=True)
    done = ps("start", env={"PS_UNIT": "1"})
    assert "could not be fetched" not in done.stderr and names(ps)[0] == ["api", "web"]


def test_a_clone_of_roots_is_read_by_a_git_that_overlooks_its_command_line(ps, home):
    """Before 2.38 git takes safe.directory from a file only."""
    if os.getuid():
        pytest.skip(f"{support.ABSENT}root, to give a clone away")
    clone(row("api", user=os.environ["USER"]) + "\n")
    argv = ["chown", "-R", "65534", str(home / "clone")]
    subprocess.run(argv, check=True)
    asked = program.start_git(str(home / "clone"), "config", "safe.directory", owner=65534)
    assert asked.finish().stdout == f"{home}/clone\n"
    shown = program.start_git(
        str(home / "clone"), "show", "HEAD:persistent-sessions.tsv", owner=65534
    )
    assert shown.finish().stdout.startswith("api\t")


def test_a_configuration_that_is_broken_is_said_by_whoever_looks_quietly(ps, home):
    configure().write_text("{")
    for command in (["attach", "x"], ["capture", "x"], ["host", "--", "true"]):
        assert "config.json" in ps(*command).stderr, command
