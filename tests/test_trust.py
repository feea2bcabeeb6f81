"""Prompts that hold a pane: named, never guessed at, answered only by consent."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import threading

import pytest
import sessions
import support
from sessions import configure, declare, row

import persistent_sessions as program

SCREENS = os.path.join(support.TESTS, "data", "screens")
HOLDING = {
    "folder_trust": "Claude's folder-trust prompt",
    "folder_trust_home": "Claude's folder-trust prompt",
    "bypass_warning": "the Bypass Permissions warning",
    "api_key": "the API-key approval",
    "settings_error": "a settings error",
    "corrupt_configuration": "a corrupt .claude.json",
    "mcp_approval": "an MCP server approval",
    "resume_picker": "the resume picker",
    "sign_in": "the sign-in",
    "theme": "the theme choice",
    "security_notes": "the security notes",
    "background_refusal": "held by a background job",
}
CONSENT = {"folder_trust", "folder_trust_home", "bypass_warning"}
FREE = ["busy", "idle_", "quoted_trust", "not_signed_in"]


def screen_text(name, columns):
    with open(os.path.join(SCREENS, f"{name}-{columns}.txt"), encoding="utf-8") as f:
        return f.read()


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("name", HOLDING)
def test_a_prompt_of_the_real_claude_is_recognised(name, columns):
    screen = program.classify_screen(screen_text(name, columns))
    assert screen == (HOLDING[name], True, name in CONSENT)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_permission_question_does_not_hold(columns):
    screen = program.classify_screen(screen_text("permission_question", columns))
    assert screen == ("waiting for you", False, False)


FREE_FILES = [p for f in FREE for p in sorted(glob.glob(f"{SCREENS}/{f}*-[28]*0.txt"))]


@pytest.mark.parametrize("path", FREE_FILES, ids=os.path.basename)
def test_a_prompt_box_is_never_taken_for_a_dialog(path):
    with open(path, encoding="utf-8") as f:
        assert program.classify_screen(f.read()) is None


@pytest.mark.parametrize("name", HOLDING)
def test_a_dialog_pasted_into_the_prompt_box_is_not_one(name):
    rule = "─" * 80
    pasted = f"{rule}\n❯ {screen_text(name, 80).strip()}\n{rule}\n  ⏵⏵ auto mode on\n"
    assert program.classify_screen(pasted) is None


# ---- Consent, with the stand-in -------------------------------------------


@pytest.fixture
def held(ps, claude, home):
    """A declared session whose pane is held by the trust prompt, then by the bypass warning."""
    declare(row("api"), row("api2"), trust={"open": False})
    settings = home / ".config" / sessions.NAME / "settings.api.json"
    settings.write_text('{"skipDangerousModePermissionPrompt": false}')
    done = ps("start")
    assert done.returncode == 1 and "api: BLOCKED: the Bypass" in done.stderr, done.stderr
    return done


@pytest.mark.tmux
def test_a_held_session_is_named_with_the_consent_command(ps, held):
    assert "persistent-sessions trust api" in held.stderr
    done = ps("list")
    assert done.returncode == 1 and "BLOCKED" in done.stdout
    assert sessions.listed(ps)["api2"]["state"] == "LIVE"


@pytest.mark.tmux
def test_trust_answers_the_warning_by_its_text(ps, held):
    done = ps("trust", "api")
    assert done.returncode == 0 and "answered the Bypass" in done.stderr, done.stderr
    assert sessions.listed(ps)["api"]["state"] == "LIVE" and ps("start").returncode == 0


@pytest.mark.tmux
def test_trust_answers_no_pane_of_another_server(ps, claude, home):
    rows = (row("api"), row("web"))
    for name in ("api", "web"):
        declare(*rows, trust={"open": False}, tmux={"socket": str(home / f"{name}.tmux")})
        path = home / ".config" / sessions.NAME / f"settings.{name}.json"
        path.write_text('{"skipDangerousModePermissionPrompt": false}')
        assert ps("start", name).returncode == 1
    assert sessions.pairs("api", "run")["pane"] == sessions.pairs("web", "run")["pane"]
    done = ps("trust", "api")
    assert done.returncode == 0, done.stderr
    states = {name: r["state"] for name, r in sessions.listed(ps).items()}
    assert states == {"api": "LIVE", "web": "BLOCKED"}


@pytest.mark.tmux
def test_trust_answers_both_prompts_in_turn(ps, claude, home):
    configure(trust={"open": False}, claude={"open_args": ["--dangerously-skip-permissions"]})
    (home / "work").mkdir()
    path = home / ".config" / sessions.NAME / "settings.work.json"
    path.write_text('{"skipDangerousModePermissionPrompt": false}')
    sessions.conf("set -g base-index 1\nsetw -g pane-base-index 1\n")
    assert ps("open", cwd=home / "work").returncode == 1
    done = ps("trust", "work")
    assert done.returncode == 0, done.stderr
    assert "folder-trust" in done.stderr and "Bypass" in done.stderr
    assert sessions.listed(ps)["work"]["state"] == "LIVE"


DIALOG = r"""#!/usr/bin/python3 -IS
import os, sys, termios, tty
options, at = {options!r}, 0
mode = termios.tcgetattr(0)
tty.setraw(0)
while True:
    lines = [("❯ " if i == at else "  ") + o for i, o in enumerate(options)]
    text = ["Accessing workspace:", os.getcwd(), "Quick safety check:", *lines,
            "Enter to confirm · Esc to cancel"]
    os.write(1, ("\x1b[2J\x1b[H" + "\r\n".join(text)).encode())
    key = os.read(0, 8)
    if key == b"\r":
        break
    at = (at + (key in (b"\x1b[B", b"\x1bOB")) - (key in (b"\x1b[A", b"\x1bOA"))) % len(options)
with open({log!r}, "w") as f:
    f.write(options[at])
os.write(1, b"\x1b[2J\x1b[Hready\r\n")
os.read(0, 1)
"""


@pytest.mark.tmux
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_consent_is_found_wherever_it_stands(ps, home, order):
    options = ["No, exit", "Yes, I trust this folder"]
    log = home / "answer"
    path = home / ".local/bin/claude"
    path.write_text(DIALOG.format(options=[options[at] for at in order], log=str(log)))
    path.chmod(0o755)
    declare(row("api"), launch={"verify_s": 5})
    assert "folder-trust" in ps("start").stderr
    ps("trust", "api")
    assert log.read_text() == "Yes, I trust this folder"


@pytest.mark.tmux
@pytest.mark.parametrize("others", [0, 12], ids=["first pane", "two digits"])
def test_sign_in_is_seen_at_every_start_and_never_answered(ps, home, tmux, others):
    for number in range(others):
        tmux("new-session", "-d", "-s", f"other{number}", "sleep 300")
    path = home / ".local/bin/claude"
    text = screen_text("sign_in", 80)
    (home / "text").write_text(text.strip("\n"))
    path.write_text(f"#!/bin/sh\ncat {home}/text\nread x\necho got $x >{home}/got\n")
    path.chmod(0o755)
    declare(row("api"), launch={"verify_s": 3})
    for _ in range(2):
        done = ps("start")
        assert done.returncode == 1 and "api: BLOCKED: the sign-in" in done.stderr
    done = ps("trust", "api")
    assert done.returncode == 1 and "not ours to answer" in done.stderr
    assert not (home / "got").exists()


@pytest.mark.tmux
def test_a_question_to_the_person_is_live_and_said(ps, claude):
    declare(row("api"))
    ps("start")
    sessions.type_line("api", "!ask")
    assert support.wait_until(lambda: "Do you want" in sessions.screen("api"))
    assert "waiting for you" in sessions.listed(ps)["api"]["note"] and ps("start").returncode == 0


@pytest.mark.tmux
def test_a_pane_too_small_to_read_is_live_with_a_note(ps, claude, tmux):
    declare(row("api"))
    ps("start")
    tmux("resize-window", "-t", "=api:", "-x", "20", "-y", "5")
    assert "too small to read (20x5)" in sessions.listed(ps)["api"]["note"]


# ---- Claude's own file ----------------------------------------------------


def paths(home):
    return program.Paths.from_env({"HOME": str(home)})


ODD = (
    '\ufeff{\r\n  "big": 12345678901234567890123, "f": 1.10e5,\r\n'
    '  "z": {"a": [1, 2]},\r\n  %s"x": "\\u00e9"\r\n}\r\n'
)


@pytest.mark.parametrize(
    "projects",
    [
        "",
        '"projects": {},\r\n  ',
        '"projects": {"/d": {}},\r\n  ',
        '"projects": {"/d": {"k": 1, "hasTrustDialogAccepted": false}},\r\n  ',
        '"projects": {"/other": {"a": 1}},\r\n  ',
    ],
)
def test_every_other_byte_of_claudes_file_stays(home, projects):
    path = home / ".claude.json"
    before = (ODD % projects).encode()
    path.write_bytes(before)
    path.chmod(0o640)
    assert program.trust_folder(paths(home), "/d") is True
    after = path.read_bytes()
    value = json.loads(after.decode("utf-8-sig"))
    assert value["projects"]["/d"]["hasTrustDialogAccepted"] is True
    for piece in (b"\xef\xbb\xbf{", b"12345678901234567890123", b"1.10e5", b"\\u00e9", b"\r\n"):
        assert piece in after
    assert (path.stat().st_mode & 0o777) == 0o640
    assert program.trust_folder(paths(home), "/d") is False and path.read_bytes() == after


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"projects": []}', '{"projects": {"/d": 1}}', "\0"]
)
def test_a_file_that_does_not_parse_is_not_touched(home, text):
    path = home / ".claude.json"
    path.write_text(text)
    with pytest.raises(program.Failure):
        program.trust_folder(paths(home), "/d")
    assert path.read_text() == text and sorted(os.listdir(home)) == [
        ".claude.json",
        ".gitconfig",
        ".local",
    ]


def test_a_linked_file_is_followed_and_a_left_lock_is_taken_over(home):
    (home / "real").mkdir()
    (home / "real/claude.json").write_text("{}")
    (home / ".claude.json").symlink_to("real/claude.json")
    lock = home / "real/claude.json.lock"
    lock.mkdir()
    os.utime(lock, (1000, 1000))
    program.trust_folder(paths(home), "/d")
    assert (home / ".claude.json").is_symlink() and not lock.exists()
    assert "/d" in (home / "real/claude.json").read_text()


def test_no_key_of_a_busy_writer_is_lost(home):
    path = home / ".claude.json"
    path.write_text("{}")
    stop = threading.Event()
    count = [0]

    def write():
        while not stop.is_set():
            try:
                value = json.loads(path.read_text())
            except ValueError:
                continue
            value[f"k{count[0]}"] = 1
            text = json.dumps(value)
            with open(path, "w") as f:
                f.write(text[: len(text) // 2])
                f.flush()
                f.write(text[len(text) // 2 :])
            count[0] += 1
            stop.wait(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    for at in range(60):
        program.trust_folder(paths(home), f"/d{at}")
    stop.set()
    writer.join()
    value = json.loads(path.read_text())
    assert [k for k in range(count[0]) if f"k{k}" not in value] == []


def test_trust_of_the_home_survives_a_restart(ps, claude, home):
    declare("me\t" + str(home))
    assert ps("start").returncode == 0
    assert json.loads((home / ".claude.json").read_text())["projects"][str(home)] == {
        "hasTrustDialogAccepted": True
    }
    subprocess.run(["tmux", "kill-server"], check=True)
    assert support.wait_until(lambda: sessions.ended("me"))
    (home / ".claude" / "projects").mkdir(exist_ok=True)
    assert ps("start").returncode == 0


# ---- Reading screens ------------------------------------------------------


@pytest.fixture
def server(tmux):
    """Three panes of different heights that show a word each; return the server and the panes."""
    for word, lines in (("one", 12), ("two", 30), ("three", 5)):
        shown = f"printf '{word}\\n\\n  last of {word}'; exec sleep 1000"
        tmux("new-session", "-d", "-s", word, "-x", "60", "-y", str(lines), shown)
    words = ("one", "two", "three")
    assert support.wait_until(lambda: all(f"last of {w}" in sessions.screen(w) for w in words))
    ask = ("display-message", "-p", "-t")
    panes = [tmux(*ask, f"={word}:", "#{pane_id}").stdout.strip() for word in words]
    return program.Tmux(tmux(*ask, "=one:", "#{socket_path}").stdout.strip()), panes


def test_each_pane_shows_its_own_lines_and_one_that_went_shows_none(server):
    tmux, (one, two, three) = server
    shown = tmux.screens([two, "%99", three, one])
    told = {pane: text.split("\n") for pane, text in shown.items()}
    assert {pane: (len(lines), lines[0], lines[2]) for pane, lines in told.items()} == {
        two: (30, "two", "  last of two"),
        three: (5, "three", "  last of three"),
        one: (12, "one", "  last of one"),
    }


@pytest.mark.parametrize("lost", [b"\n\n", b"three\n", b"%0 12\n"])
def test_an_answer_whose_lines_do_not_add_up_is_asked_for_again(server, home, lost):
    tmux, (one, two, three) = server
    shim = home / ".local/bin/tmux"
    shim.write_text(
        f"""#!{sys.executable} -IS
import subprocess, sys
done = subprocess.run(["/usr/bin/tmux", *sys.argv[1:]], stdout=subprocess.PIPE)
told = done.stdout if "capture-pane" in sys.argv else done.stdout.replace({lost!r}, b"", 1)
sys.stdout.buffer.write(told)
sys.exit(done.returncode)
"""
    )
    shim.chmod(0o755)
    shown = tmux.screens([two, three, one])
    assert {pane: text.split("\n")[2] for pane, text in shown.items()} == {
        two: "  last of two",
        three: "  last of three",
        one: "  last of one",
    }


@pytest.mark.tmux
def test_what_cannot_be_seen_is_not_said_to_be_answered(ps, claude, home, tmux):
    configure(trust={"open": False}, launch={"verify_s": 4})
    (home / "work").mkdir()
    ps("open", cwd=home / "work")
    tmux("resize-window", "-t", "=work:", "-x", "30", "-y", "8")
    done = ps("trust", "work")
    assert done.returncode == 1 and "too small to read" in done.stderr, done.stderr


def test_a_lock_from_the_future_is_taken_over(private, home):
    lock = home / ".claude.json.lock"
    lock.mkdir()
    os.utime(lock, (4e9, 4e9))
    paths = program.Paths.from_env(os.environ)
    assert program.trust_folder(paths, "/srv/x") and not lock.exists()


def test_a_file_of_claudes_behind_a_dangling_link_is_not_made_anew(private, home):
    (home / ".claude.json").symlink_to(home / "not mounted" / "claude.json")
    paths = program.Paths.from_env(os.environ)
    with pytest.raises(program.Failure, match="leads nowhere"):
        program.trust_folder(paths, "/srv/x")
    assert not (home / "not mounted").exists()
