"""`hook`: the conversation of a pane is followed, and nobody else's."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
import sessions
import support
from sessions import declare, head_id, new_id, row, state

pytestmark = pytest.mark.tmux

HOOK = [support.sys.executable, "-IS", support.SESSIONS, "hook"]


@pytest.fixture
def api(ps, claude):
    declare(row("api"))
    assert ps("start").returncode == 0
    assert support.wait_until(lambda: sessions.pairs("api", "event"))
    return head_id("api")


def payload(session_id, source="clear", event="SessionStart", **more):
    key = "source" if event == "SessionStart" else "reason"
    return json.dumps({"session_id": session_id, "hook_event_name": event, key: source, **more})


def pane_env(name, **more):
    """Return the environment that a hook of a session's claude has."""
    show = support.run_tmux("display-message", "-p", "-t", f"={name}:", "#{socket_path},1,0 #D")
    tmux, pane = show.stdout.split()
    known = {"TMUX": tmux, "TMUX_PANE": pane, "PS_SESSION_NAME": name}
    return {**os.environ, **known, "CLAUDE_PID": str(sessions.agent(name)), **more}


def fire(text, env):
    done = subprocess.run(HOOK, input=text, env=env, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("source", ["startup", "resume", "clear", "compact", "fork", "later"])
def test_every_source_is_followed(ps, api, source):
    fire(payload(new_id(5), source), pane_env("api"))
    assert (state() / "api.id").read_text().split() == [new_id(5), api]


def test_the_last_id_is_the_one_resumed(ps, api, tmux):
    for number, source in enumerate(("clear", "compact", "fork"), 5):
        fire(payload(new_id(number), source), pane_env("api"))
    sessions.transcript(new_id(7))
    tmux("kill-server")
    assert support.wait_until(lambda: sessions.ended("api"))
    assert f"resumed {new_id(7)}" in ps("start").stderr


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_startup_beside_a_resume_is_a_throw_away(ps, api, order):
    sessions.transcript(new_id(1))
    ps("retire", "api")
    support.run_tmux("kill-server")
    sessions.file_id("api", new_id(1))
    assert support.wait_until(lambda: sessions.ended("api"))
    assert ps("start", "api").returncode == 0
    both = [payload(new_id(1), "resume"), payload(new_id(2), "startup")]
    for at in order:
        fire(both[at], pane_env("api"))
    assert head_id("api") == new_id(1)


def test_a_nested_agent_changes_nothing(api):
    env = pane_env("api")
    script = f"cd / && {' '.join(HOOK)}"
    inner = subprocess.Popen(["sleep", "60"])
    try:
        fire(payload(new_id(9), "compact"), {**env, "CLAUDE_PID": str(inner.pid)})
    finally:
        inner.kill()
        inner.wait()
    env.pop("CLAUDE_PID")
    subprocess.run(["sh", "-c", script], input=payload(new_id(9)), env=env, text=True, check=True)
    assert head_id("api") == api


def test_an_agent_run_by_the_agent_changes_nothing(ps, claude, home):
    declare(row("api"))
    ps("start")
    assert support.wait_until(lambda: head_id("api"))
    first = head_id("api")
    script = home / "inner.sh"
    script.write_text(
        f"#!/bin/sh\nCLAUDE_PID=$$; export CLAUDE_PID\nprintf '%s' '{payload(new_id(9))}' |"
        f" {' '.join(HOOK)}\ntouch {home}/done\n"
    )
    script.chmod(0o755)
    tool = [support.sys.executable, "-c", "import os,sys;os.execv(sys.argv[1],sys.argv[1:])"]
    subprocess.run([*tool, str(script)], env=pane_env("api"), check=True)
    assert (home / "done").exists() and head_id("api") == first


def test_without_a_pane_nothing_is_written(api):
    env = pane_env("api")
    env.pop("TMUX_PANE")
    fire(payload(new_id(9)), env)
    fire(payload(new_id(9)), {**env, "TMUX_PANE": "%999"})
    assert head_id("api") == api and sorted(p.name for p in state().glob("*.id")) == ["api.id"]


def test_a_grouped_session_files_under_the_restore_set_name(api, tmux):
    tmux("new-session", "-d", "-t", "=api", "-s", "phone")
    fire(payload(new_id(5)), pane_env("api"))
    assert head_id("api") == new_id(5) and not (state() / "phone.id").exists()


def test_a_renamed_session_files_under_its_live_name(api, tmux):
    env = pane_env("api")
    tmux("rename-session", "-t", "=api", "new")
    fire(payload(new_id(5)), env)
    assert head_id("new") == new_id(5) and head_id("api") == api


def test_twenty_ids_are_kept_the_newest_first(api):
    for number in range(30):
        fire(payload(new_id(number)), pane_env("api"))
    ids = (state() / "api.id").read_text().split()
    assert len(ids) == 20 and ids[0] == new_id(29) and ids[1] == new_id(28)


def test_an_id_of_a_conversation_outlives_those_to_which_nothing_was_said(api):
    sessions.transcript(new_id(40))
    sessions.file_id("api", *map(new_id, range(10, 29)), new_id(40))
    for number in range(3):
        fire(payload(new_id(number)), pane_env("api"))
    ids = (state() / "api.id").read_text().split()
    assert len(ids) == 20 and (ids[0], ids[-1]) == (new_id(2), new_id(40))


@pytest.mark.parametrize("writer", ["whole", "slow", "nothing", "closed", "garbage"])
def test_a_caller_that_never_closes_does_not_hold_the_hook(api, writer):
    text = payload(new_id(5))
    process = subprocess.Popen(HOOK, env=pane_env("api"), stdin=subprocess.PIPE)
    began = time.monotonic()
    parts = {"whole": [text], "slow": [text[:9], text[9:40], text[40:]], "garbage": ["{]"]}
    for part in parts.get(writer, []):
        process.stdin.write(part.encode())
        process.stdin.flush()
        support.select.select([], [], [], 0.1)
    if writer == "closed":
        process.stdin.close()
    assert process.wait(8) == 0 and time.monotonic() - began < 5
    process.stdin.close()
    assert head_id("api") == (new_id(5) if writer in ("whole", "slow") else api)


HOSTILE = ["", "{", "[]", "null", "1", '{"hook_event_name": 5}', "\0\0", '{"a":' * 5000, "\xff"]
IDS = ["..", "/x", "a/b", "x" * 300, "a\0b", "a\nb", "", None, 7, {"a": 1}]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_garbage_changes_nothing(api, text):
    fire(text, pane_env("api"))
    assert head_id("api") == api


@pytest.mark.parametrize("session_id", IDS, ids=range(len(IDS)))
def test_an_id_that_is_none_changes_nothing(api, session_id):
    before = sorted(p.name for p in state().iterdir())
    fire(payload(session_id), pane_env("api"))
    assert head_id("api") == api and sorted(p.name for p in state().iterdir()) == before


def test_the_end_of_a_session_is_kept_for_its_supervisor(api):
    fire(payload(api, "prompt_input_exit", "SessionEnd"), pane_env("api"))
    event = sessions.pairs("api", "event")
    assert (event["event"], event["why"]) == ("SessionEnd", "prompt_input_exit")


def test_fifty_hooks_at_once_lose_no_file(api):
    env = pane_env("api")
    many = [subprocess.Popen(HOOK, env=env, stdin=subprocess.PIPE, text=True) for _ in range(50)]
    for number, process in enumerate(many):
        process.communicate(payload(new_id(number)), timeout=60)
    assert all(process.returncode == 0 for process in many)
    ids = (state() / "api.id").read_text().split()
    assert len(ids) == len(set(ids)) and all(len(i) == 36 for i in ids)
    assert not list(state().glob(".*.tmp"))


def test_a_full_disk_leaves_the_old_id(api, home):
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to mount a small disk")
    script = (
        f"cp -a {state()} {home}/copy && mount -t tmpfs -o size=64k,mode=700 none {state()} &&"
        f" cp -a {home}/copy/api.* {state()}/ && (cat /dev/zero >{state()}/filler;"
        f" printf '%s' '{payload(new_id(5))}' | {' '.join(HOOK)}; echo rc=$?; ls -a {state()};"
        f" cat {state()}/api.id)"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=pane_env("api"), capture_output=True, text=True
    )
    assert "rc=0" in done.stdout and api in done.stdout and ".tmp" not in done.stdout


def test_a_read_only_home_does_not_disturb_the_session(api, home):
    if os.getuid() != 0:
        pytest.skip(f"{support.ABSENT}root, to remount the home")
    script = (
        f"mount --bind {home} {home} && mount -o remount,ro,bind {home} &&"
        f" printf '%s' '{payload(new_id(5))}' | {' '.join(HOOK)}; echo rc=$?"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=pane_env("api"), capture_output=True, text=True
    )
    assert done.stdout == "rc=0\n" and done.stderr == "" and head_id("api") == api


MEASURE = """import resource, subprocess, sys
flood = subprocess.Popen(["yes", "no payload"], stdout=subprocess.PIPE)
status = subprocess.run(sys.argv[1:], stdin=flood.stdout).returncode
flood.kill()
flood.wait()
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 100_000)  # KiB
"""


def test_a_flood_on_standard_input_fills_no_memory(api):
    argv = [support.sys.executable, "-c", MEASURE, *HOOK]  # a child's peak begins with its parent's
    done = subprocess.run(argv, env=pane_env("api"), capture_output=True, text=True)
    assert done.stdout == "0 True\n" and head_id("api") == api


def test_an_end_is_heard_where_the_socket_of_tmux_is_gone(ps, api, terminal):
    """Who is attached works on, and does not know."""
    sessions.prompt("api", "hello")
    first = head_id("api")
    socket = support.run_tmux("display-message", "-p", "#{socket_path}").stdout.strip()
    screen = terminal("tmux", "attach", "-t", "=api", size=(50, 200))
    screen.expect("ANSWER")
    os.unlink(socket)
    screen.send("/exit\r")
    assert support.wait_until(lambda: sessions.ended("api"))
    assert sessions.pairs("api", "exit")["deliberate"] == "yes"
    assert (state() / "api.retired").exists() and head_id("api") == first
    ps("start")
    assert sessions.listed(ps)["api"]["state"] == "RETIRED"


def test_an_end_is_heard_where_another_server_has_the_socket(ps, api, terminal, tmux):
    sessions.prompt("api", "hello")
    socket = support.run_tmux("display-message", "-p", "#{socket_path}").stdout.strip()
    screen = terminal("tmux", "attach", "-t", "=api", size=(50, 200))
    screen.expect("ANSWER")
    os.unlink(socket)
    tmux("new-session", "-d", "-s", "other")  # its first pane has the same id
    screen.send("/exit\r")
    assert support.wait_until(lambda: (state() / "api.retired").exists())
    assert not (state() / "other.id").exists()
