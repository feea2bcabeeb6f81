"""`doctor`: each prerequisite on one line, with the command that mends it."""

from __future__ import annotations

import json
import os
import time

import pytest
import sessions
from sessions import configure, declare, new_id, row, state

import persistent_sessions as program

OK_UNIT = {
    "UnitFileState": "enabled",
    "ActiveState": "inactive",
    "Result": "success",
    "InactiveEnterTimestamp": "Mon 2026-11-30 09:00:00 UTC",
}
OK_TIMER = {
    "UnitFileState": "enabled",
    "ActiveState": "active",
    "NextElapseUSecMonotonic": "1h 2min 3.5s",
}


@pytest.fixture
def doctor(ps):
    """Run `doctor --json` and return {name: (state, text, mend)}; the last of a name counts."""

    def run(**how):
        done = ps("doctor", "--json", **how)
        checks = json.loads(done.stdout)["checks"]
        assert done.returncode == any(c["state"] == "fail" for c in checks), done.stderr
        return {c["name"]: (c["state"], c["text"], c["mend"]) for c in checks}

    return run


def claude_settings(text):
    folder = sessions.claude_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(text)


# ---- What is judged, without a machine ------------------------------------


@pytest.mark.parametrize(
    "answer, state",
    [
        ("tmux 3.3a", "ok"), ("tmux 3.2", "ok"), ("tmux next-3.6", "ok"), ("tmux master", "ok"),
        ("tmux 3.1c", "fail"), ("tmux 2.9", "fail"), ("", "fail"),
    ],
)  # fmt: skip
def test_a_program_that_is_missing_or_too_old_fails(answer, state):
    check = program.classify_tool("tmux", answer, (3, 2), "get it")
    assert (check.state, check.mend) == (state, "" if state == "ok" else "get it")


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("1h 2min 3.5s", 3723.5), ("2d 1w", 777600.0), ("500ms", 0.5), ("infinity", 0.0), ("", 0.0),
        ("1month 2d", 2802600.0), ("1y 1month", 34187400.0),
    ],  # fmt: skip
)
def test_a_span_of_systemctl_is_read(text, seconds):
    assert program.parse_span(text) == seconds


def units(service=None, timer=None, uptime=3700.0):
    checks = program.classify_units({**OK_UNIT, **(service or {})}, {**OK_TIMER, **(timer or {})},
                                    uptime)  # fmt: skip
    return {c.name: (c.state, c.text) for c in checks}


def test_a_unit_and_timer_in_order_say_when_they_run():
    found = units()
    assert found["timer"] == ("ok", "next run in 24 s")
    assert found["last run"] == ("ok", "Mon 2026-11-30 09:00:00 UTC: success")


@pytest.mark.parametrize(
    "service, timer, name, state",
    [
        ({"UnitFileState": "disabled"}, {}, "unit", "fail"),
        ({"UnitFileState": ""}, {}, "unit", "fail"),
        ({"Result": "exit-code"}, {}, "last run", "fail"),
        ({"InactiveEnterTimestamp": ""}, {}, "last run", "ok"),
        ({"InactiveEnterTimestamp": ""}, {"ActiveState": "inactive"}, "last run", "warn"),
        ({"InactiveEnterTimestamp": ""}, {"NextElapseUSecMonotonic": ""}, "last run", "warn"),
        ({"ActiveState": "activating", "InactiveEnterTimestamp": ""}, {}, "last run", "ok"),
        ({}, {"UnitFileState": "disabled"}, "timer", "fail"),
        ({}, {"ActiveState": "inactive"}, "timer", "fail"),
        ({}, {"NextElapseUSecMonotonic": "infinity"}, "timer", "fail"),
        ({"ActiveState": "activating"}, {"NextElapseUSecMonotonic": ""}, "timer", "ok"),
    ],
)
def test_a_unit_or_timer_out_of_order_is_named(service, timer, name, state):
    assert units(service, timer)[name][0] == state


@pytest.mark.parametrize(
    "env, helper, signed_in, state, word",
    [
        ({}, False, True, "ok", "claude.ai"),
        ({}, False, False, "warn", "nobody"),
        ({"ANTHROPIC_API_KEY": "x"}, False, True, "warn", "ANTHROPIC_API_KEY"),
        ({"CLAUDE_CODE_OAUTH_TOKEN": "x"}, False, True, "warn", "OAUTH_TOKEN"),
        ({"CLAUDE_CODE_USE_BEDROCK": "1"}, False, True, "warn", "BEDROCK"),
        ({"CLAUDE_CODE_USE_BEDROCK": "0"}, False, True, "ok", "claude.ai"),
        ({"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}, False, True, "warn", "TRAFFIC"),
        ({}, True, True, "warn", "apiKeyHelper"),
    ],
)
def test_what_keeps_remote_control_from_working_is_named(env, helper, signed_in, state, word):
    check = program.classify_sign_in(env, helper, signed_in)
    assert check.state == state and word in check.text


@pytest.mark.parametrize(
    "period, ages, state, word",
    [
        (30.0, {}, "ok", "30 days"),
        (30.0, {"api": 10.0, "web": 22.0}, "ok", "30 days"),
        (30.0, {"api": 10.0, "web": 25.0}, "warn", "of web is the next to be cleaned, in 5 days"),
        (30.0, {"web": 45.0}, "warn", "at any moment"),
        (4.0, {"web": 1.0}, "ok", "4 days"),
        (0.0, {}, "fail", "keeps no conversation"),
    ],
)
def test_a_conversation_is_named_while_there_is_time(period, ages, state, word):
    check = program.classify_retention(period, ages)
    assert check.state == state and word in check.text


FUNCTION = program.SHELL_FUNCTION


@pytest.mark.parametrize(
    "text, state, word",
    [
        (FUNCTION, "ok", "in place"),
        (f"alias claude=x\n{FUNCTION}alias c=y\n", "ok", "in place"),
        ("", "warn", "missing"),
        (FUNCTION.replace("open", "closed"), "warn", "another version"),
        (FUNCTION.replace(program.END, ""), "fail", "do not pair"),
        (f"{FUNCTION}alias claude='claude --debug'\n", "warn", "hidden by a later line"),
        (f"{FUNCTION}claude() {{ :; }}\n", "warn", "hidden by a later line"),
    ],
)
def test_a_shell_function_that_is_not_in_force_is_named(text, state, word):
    check = program.classify_rc(text, "/home/ann/.bashrc")
    assert check.state == state and word in check.text


def test_trust_of_a_folder_above_counts():
    yes = {"hasTrustDialogAccepted": True}
    trusted = program.choose_trusted
    assert trusted("/home/ann/a/b", {"/home/ann": yes}) == "/home/ann"
    assert trusted("/home/ann", {"/home/ann/a": yes, "/": {"hasTrustDialogAccepted": False}}) == ""


def test_a_report_has_one_line_a_check_and_names_the_command_only_where_it_is_needed():
    checks = [program.Check("a", "ok", "good", "x"), program.Check("b", "fail", "bad", "y")]
    assert program.format_checks(checks) == "ok    a: good\nfail  b: bad (try: y)\n"


def test_a_drop_in_is_read_as_it_was_written():
    env = {"PATH": "/a b:/c%d", "LANG": 'x\\"y"', "TZ": "a\\\\"}
    assert program.parse_dropin(program.format_dropin(env)) == env


# ---- What is looked at, in a private home ---------------------------------


def test_a_missing_claude_or_folder_fails_with_the_command(doctor, home):
    declare(row("api"))
    (home / "api").rmdir()
    found = doctor(env={"PATH": "/usr/bin:/bin"})
    assert found["claude"][0] == "fail" and "npm install" in found["claude"][2]
    assert found["folder of api"][0] == "fail" and "retire api" in found["folder of api"][2]
    assert found["session api"][1].startswith("GONE")


def test_the_real_claude_is_found_with_its_version(doctor, claude):
    configure()
    found = doctor()
    assert found["claude"][:2] == ("ok", f"{claude}: 2.1.332 (Claude Code)")


def test_root_with_permission_arguments_is_named(doctor, claude):
    declare(row("api"))
    found = doctor()
    assert ("root" in found) == (os.getuid() == 0)
    assert "root" not in doctor(env={"IS_SANDBOX": "1"})


@pytest.mark.parametrize("text", ["{", '{"trust": {"open": 1}}', '{"no": {"such": 1}}'])
def test_a_configuration_that_means_nothing_is_named(doctor, text):
    configure().write_text(text)
    assert doctor()["config"][0] == ("warn" if "such" in text else "fail")


def test_an_unreadable_state_folder_does_not_stop_the_other_checks(doctor):
    state().parent.mkdir(parents=True)
    state().write_text("not a folder")
    found = doctor()
    assert found["state"][0] == "fail" and found["tmux"][0] == "ok"


def test_a_broken_settings_file_of_claude_is_named(doctor):
    claude_settings("{")
    assert doctor()["claude's settings"][0] == "fail"


def test_claudes_settings_decide_over_tools_and_retention(doctor):
    claude_settings('{"env": {"CLAUDE_CODE_ENABLE_TODO_TOOLS": "1"}, "cleanupPeriodDays": 99}')
    found = doctor()
    assert found["task tools"][0] == "ok" and "99 days" in found["retention"][1]


def test_the_session_whose_conversation_is_cleaned_next_is_named(doctor):
    declare(row("api"), row("web"))
    for number, name in ((1, "api"), (2, "web")):
        path = sessions.transcript(new_id(number))
        sessions.file_id(name, new_id(number))
        at = time.time() - 86400 * (20 + number * 4)
        os.utime(path, (at, at))
    assert "conversation of web" in doctor()["retention"][1]


def test_an_account_at_claude_ai_is_seen_and_an_api_key_in_its_way(doctor):
    folder = sessions.claude_folder()
    folder.mkdir()
    (folder / ".credentials.json").write_text('{"claudeAiOauth": {"accessToken": "s3cret"}}')
    assert doctor()["sign-in"][0] == "ok"
    blocked = doctor(env={"ANTHROPIC_API_KEY": "s3cret"})
    assert blocked["sign-in"][0] == "warn" and "s3cret" not in str(blocked)


def test_trust_is_told_for_each_folder_and_for_the_home(doctor, ps, home):
    declare(row("api"))
    assert doctor()["folder of api"][2] == "persistent-sessions trust api"
    ps("trust", "api")
    assert "folder of api" not in doctor()
    trusted = {"projects": {str(home): {"hasTrustDialogAccepted": True}}}
    (home / ".claude.json").write_text(json.dumps(trusted))
    assert "every folder below" in doctor()["trust"][1]


def test_a_clone_that_cannot_be_read_is_named_with_the_age_of_the_copy(doctor, home):
    work = sessions.clone(row("api") + "\n")
    assert doctor()["manifest"][:2] == ("ok", f"1 of its rows are {os.environ['USER']}'s")
    work.rename(home / "away")
    state_, text, mend = doctor()["manifest"]
    assert state_ == "fail" and "the last good copy of 20" in text and mend == f"ls -ld {work}"


def test_a_missing_ref_is_named(doctor, home):
    sessions.clone(row("api") + "\n")
    configure(manifest={"clone": str(home / "clone"), "ref": "refs/remotes/origin/none"})
    state_, _, mend = doctor()["manifest"]
    assert state_ == "fail" and mend == f"git -C {home / 'clone'} fetch"


def test_stale_ids_and_two_rows_with_one_conversation_are_named(doctor, ps):
    declare(row("api"), row("web"))
    sessions.file_id("gone", new_id(1))
    assert "gone.id names no session" in doctor()["ids"][1]
    (state() / "gone.id").unlink()
    sessions.file_id("api", new_id(2))
    sessions.file_id("web", new_id(2))
    assert "api and web have one conversation" in doctor()["ids"][1]


def test_a_held_conversation_is_named_with_its_process(doctor):
    declare(row("api"))
    sessions.transcript(new_id(1))
    sessions.file_id("api", new_id(1))
    sessions.record(os.getpid(), new_id(1))
    found = doctor()["session api"]
    assert found[0] == "fail" and f"pid {os.getpid()}" in found[1]


def test_a_tmux_that_cannot_be_asked_is_named(doctor, home):
    declare(row("api"))
    configure(tmux={"socket": f"{home}/{'l' * 120}"})
    assert doctor()["tmux server"][0] == "fail"


def test_bad_rows_are_warnings(doctor, ps):
    declare(row("api"), "bad row")
    state().mkdir(parents=True, exist_ok=True)
    (state() / "registry.tsv").write_text("broken\n")
    found = doctor()
    assert found["registry"][0] == "warn" and found["manifest"][0] == "warn"


def test_the_lines_are_for_people(ps):
    done = ps("doctor")
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in done.stdout.splitlines())
