"""The plan: one verdict a session, from one snapshot, without touching anything."""

from __future__ import annotations

import pytest
from sessions import new_id

import persistent_sessions as program
from persistent_sessions import (
    Ending,
    Event,
    Facts,
    Health,
    Pane,
    Record,
    Screen,
    Spec,
    Supervisor,
    World,
)

A, B = new_id(1), new_id(2)
API = Spec("api", "/srv/api")
RUN = Supervisor("boot", 100, "1", 101, "2", "%1", "/s", "", 50.0)
PANE = Pane("api", "", "%1", 100, False, 200, 50, 1, True, "/s")


def world(*specs, **fields):
    """Return a world with these sessions, everything else empty unless given."""
    empty = {
        "specs": specs or (API,),
        "left": (),
        "facts": {},
        "panes": (),
        "screens": {},
        "claudes": frozenset(),
        "records": (),
        "transcripts": {},
        "moved": {},
        "jobs": {},
        "blind": "",
        "no_projects": "",
        "unclear": "",
        "now": 1000.0,
    }
    fields = {**empty, **fields}
    return World(by_pid=program.index_panes(fields["panes"]), **fields)


def verdict(**fields):
    (decision,) = program.plan(world(**fields))
    return decision.verdict


def record(pid=7, session_id=A, **fields):
    known = Record(pid, session_id, "/srv/api", "1", "interactive", "cli", "", "", "")
    return known._replace(**fields)


LIVE = {"facts": {"api": Facts(run=RUN, run_live=True)}}
IDLE = {"facts": {"api": Facts(ids=(A,), ids_at=9.0)}, "transcripts": {A: True}}
BLOCK = Screen("the Bypass Permissions warning", True, True)
TABLE = [
    ({}, "LAUNCH"),
    (IDLE, "LAUNCH"),
    ({**LIVE, "panes": (PANE,)}, "LIVE"),
    (LIVE, "LIVE"),
    ({**LIVE, "blind": "no answer"}, "LIVE"),
    ({**LIVE, "panes": (PANE,), "screens": {PANE.key: BLOCK}}, "BLOCKED"),
    ({**LIVE, "panes": (PANE,), "screens": {PANE.key: BLOCK._replace(blocks=False)}}, "LIVE"),
    ({"blind": "no answer"}, "UNKNOWN"),
    ({"panes": (PANE._replace(ours=False),)}, "FOREIGN"),
    ({"panes": (PANE._replace(ours=False),), "claudes": frozenset((PANE.key,))}, "LIVE"),
    ({"panes": (PANE._replace(ours=False),), "screens": {PANE.key: BLOCK}}, "BLOCKED"),
    ({"panes": (PANE._replace(ours=False, dead=True),)}, "FOREIGN"),
    ({"panes": (PANE,)}, "LAUNCH"),
    ({"panes": (PANE._replace(dead=True),)}, "LAUNCH"),
    ({"facts": {"api": Facts(folder="gone")}}, "GONE"),
    ({"facts": {"api": Facts(folder="it cannot be read")}}, "UNKNOWN"),
    ({"facts": {"api": Facts(trouble="x")}}, "UNKNOWN"),
    ({"facts": {"api": Facts(retired=True)}}, "RETIRED"),
    ({**IDLE, "transcripts": {}, "no_projects": "not mounted"}, "UNKNOWN"),
    ({"no_projects": "not mounted"}, "LAUNCH"),
    ({**IDLE, "records": (record(alive=True),)}, "HELD"),
    ({**IDLE, "records": (record(alive=False),)}, "LAUNCH"),
    ({**IDLE, "records": (record(alive=True, session_id=B),)}, "LAUNCH"),
    ({**IDLE, "jobs": {A: "00000001"}}, "HELD"),
    ({**IDLE, "unclear": "half written"}, "UNKNOWN"),
    ({"unclear": "half written"}, "LAUNCH"),
    ({"facts": {"api": Facts(health=Health(1, 900.0))}}, "RESTING"),
    ({"facts": {"api": Facts(health=Health(1, 600.0))}}, "LAUNCH"),
    ({"facts": {"api": Facts(health=Health(1, 2000.0))}}, "LAUNCH"),
    ({"facts": {"api": Facts(health=Health(1, 900.0))}, "insist": frozenset(("api",))}, "LAUNCH"),
]


@pytest.mark.parametrize("fields, expected", TABLE, ids=range(len(TABLE)))
def test_each_world_has_one_verdict(fields, expected):
    assert verdict(**fields) == expected


def test_one_bad_row_never_stops_the_others():
    facts = {"api": Facts(trouble="x")}
    decisions = program.plan(world(API, Spec("web", "/srv/web"), facts=facts))
    assert [d.verdict for d in decisions] == ["UNKNOWN", "LAUNCH"]


@pytest.mark.parametrize(
    "failures, minutes", [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (6, 60), (99, 60)]
)
def test_each_failure_in_a_row_doubles_the_rest_up_to_an_hour(failures, minutes):
    assert program.choose_rest(Health(failures, 1000.0), None, 1000.0) == 1000.0 + minutes * 60
    assert program.choose_rest(Health(failures, 1000.0), None, 1000.0 + minutes * 60) == 0.0


def choose(spec=API, facts=None, records=(), **fields):
    facts = facts or Facts()
    ids = program.choose_witnesses(spec, facts, records)
    return program.choose_resume(spec, ids, world(spec, **fields))[0]


def test_the_pin_counts_only_when_no_witness_is_left():
    pinned = API._replace(pin=B)
    both = {A: True, B: True}
    assert choose(pinned, Facts(ids=(A,)), transcripts=both) == A
    assert choose(pinned, Facts(ids=(A,)), transcripts={B: True}) == B
    assert choose(pinned, transcripts=both) == B


def test_only_the_newest_filed_id_speaks():
    assert choose(facts=Facts(ids=(A, B)), transcripts={B: True}) == ""


def test_with_a_supervisor_only_its_own_claudes_record_counts():
    own = record(101, B, start="2", seen=51.0)
    other = record(102, new_id(3), start="2", tmux="api", seen=99.0)
    every = {A: True, B: True, new_id(3): True}
    facts = Facts(ids=(A,), ids_at=9.0, run=RUN)
    assert choose(facts=facts, records=(own, other), transcripts=every) == B
    fired = facts._replace(ids=(A, B), event=Event("SessionStart", A, "clear", 60.0, 101, "api"))
    assert choose(facts=fired, records=(own, other), transcripts=every) == A


def test_a_conversation_that_the_hook_could_not_file_is_known_from_claudes_record():
    facts = Facts(ids=(A,), ids_at=60.0, run=RUN)
    own = record(101, B, start="2", seen=60.0)
    assert choose(facts=facts, records=(own,), transcripts={A: True, B: True}) == B
    assert choose(facts=facts, records=(own,), transcripts={A: True}) == A


def test_a_record_of_an_earlier_boot_with_the_same_pid_and_start_is_no_witness():
    older = record(101, B, start="2", seen=49.0)
    fired = Event("SessionStart", A, "startup", 60.0, 101, "api")
    for facts in (Facts(run=RUN), Facts(ids=(A,), run=RUN), Facts(ids=(A,), run=RUN, event=fired)):
        assert choose(facts=facts, records=(older,), transcripts={B: True}) == ""


def test_without_a_supervisor_the_newer_witness_wins_and_must_match_the_folder():
    every = {A: True, B: True}
    facts = Facts(ids=(A,), ids_at=9.0)
    newer = record(102, B, tmux="api", seen=10.0)
    assert choose(facts=facts, records=(newer,), transcripts=every) == B
    assert choose(facts=facts, records=(newer._replace(seen=8.0),), transcripts=every) == A
    assert choose(facts=facts, records=(newer._replace(directory="/x"),), transcripts=every) == A
    assert choose(facts=facts, records=(newer._replace(kind="bg"),), transcripts=every) == A
    assert (
        choose(facts=facts, records=(newer._replace(entrypoint="sdk-cli"),), transcripts=every) == A
    )


def test_a_renamed_row_lives_on_as_its_new_name():
    new = Spec("new", "/srv/api", renamed="api")
    facts = {"new": Facts(run=RUN, run_live=True)}
    pane = PANE._replace(session="new")
    decisions = program.plan(world(API, new, facts=facts, panes=(pane,)))
    assert [(d.verdict, d.why) for d in decisions] == [("LIVE", "as 'new'"), ("LIVE", "")]


def test_a_live_supervisor_holds_the_id_it_was_asked_for():
    web = Spec("web", "/srv/web")
    facts = {
        "api": Facts(ids=(A,)),
        "web": Facts(run=RUN._replace(resume=A), run_live=True),
    }
    first, _ = program.plan(world(API, web, facts=facts, transcripts={A: True}))
    assert first.verdict == "HELD" and "'web'" in first.why


def test_a_late_note_of_an_end_gives_up_no_conversation():
    web = Spec("web", "/srv/web")
    late = Event("SessionEnd", B, "clear", 60.0, 101, "web")
    facts = {
        "api": Facts(ids=(A,)),
        "web": Facts(ids=(A, B), ids_at=60.0, run=RUN, run_live=True, event=late),
    }
    first, _ = program.plan(world(API, web, facts=facts, transcripts={A: True}))
    assert first.verdict == "HELD" and "'web'" in first.why


ENDINGS = [
    ({"reason": "prompt_input_exit"}, True),
    ({"reason": "other"}, False),
    ({"reason": "prompt_input_exit", "status": 1}, False),
    ({"reason": "prompt_input_exit", "killed": 9}, False),
    ({"reason": "prompt_input_exit", "signalled": "HUP"}, False),
    ({"reason": "prompt_input_exit", "signalled": "TERM"}, False),
    ({"reason": "prompt_input_exit", "system": "stopping"}, False),
    ({"reason": "prompt_input_exit", "user": "stopping"}, False),
    ({"reason": "prompt_input_exit", "scope": "deactivating"}, False),
    ({"reason": "prompt_input_exit", "system": "degraded", "user": "offline"}, True),
    ({"reason": None, "started": True, "recorded": True}, False),
    ({"reason": None, "recorded": True}, True),
    ({"reason": None}, False),
]


@pytest.mark.parametrize("fields, deliberate", ENDINGS, ids=range(len(ENDINGS)))
def test_only_a_person_at_the_prompt_ends_a_session(fields, deliberate):
    plain = Ending(0, 0, "", "running", "running", "active", None, False, False)
    assert plain._replace(**fields).deliberate is deliberate


FAILURES = [
    ({"status": 1}, True),
    ({"reason": None}, True),
    ({"killed": 11}, True),
    ({"killed": 9}, False),
    ({"status": 143}, False),
    ({"status": 129}, False),
    ({"reason": "other"}, False),
    ({"reason": "prompt_input_exit"}, False),
    ({"status": 1, "signalled": "HUP"}, False),
    ({"status": 1, "system": "stopping"}, False),
]


@pytest.mark.parametrize("fields, failure", FAILURES, ids=range(len(FAILURES)))
def test_only_an_end_by_itself_counts_as_a_failure(fields, failure):
    plain = Ending(0, 0, "", "running", "running", "active", None, False, False)
    assert plain._replace(**fields).by_itself is failure


NAMES = [
    ("/home/me", {}, "me"),
    ("/srv/app", {}, "app"),
    ("/srv/app", {"app": "/srv/app"}, "app"),
    ("/srv/app", {"app": "/other/app"}, "srv-app"),
    ("/srv/app", {"app": "", "srv-app": ""}, "app-2"),
    ("/", {}, "root"),
    ("/srv/a b", {}, "a_b"),
    ("/srv/-x", {}, "_x"),
    ("/srv/" + "é" * 100, {}, "é" * 30),
]


@pytest.mark.parametrize("directory, owners, name", NAMES)
def test_a_folder_has_a_name_that_no_other_folder_owns(directory, owners, name):
    assert program.plan_name(directory, "/home/me", "me", owners) == name
    assert program.classify_name(name) == ""


def test_a_pane_that_several_sessions_show_belongs_to_the_known_one():
    twin = PANE._replace(session="phone", group="api", created=5)
    first = PANE._replace(group="api")
    assert program.choose_session((twin, first), ["api"]) == "api"
    assert program.choose_session((twin, first), []) == "api"
    assert program.choose_session((twin, first), ["phone"]) == "phone"
    assert program.choose_session((), ["api"]) == ""


def test_our_hooks_are_always_in_the_settings_and_the_rest_can_be_changed():
    own = {"disableAgentView": False, "env": {"X": "1"}, "hooks": {"SessionStart": [{"a": 1}]}}
    settings = program.session_settings({"SessionStart": ["ours"], "SessionEnd": ["ours"]}, own)
    assert settings["disableAgentView"] is False and settings["env"]["X"] == "1"
    assert settings["env"]["CLAUDE_CODE_ENABLE_TODO_TOOLS"] == "1"
    start = settings["hooks"]["SessionStart"]
    assert start[0] == {"a": 1} and start[1]["hooks"][0]["command"] == "ours"
    assert "matcher" not in start[1]


def test_a_session_environment_has_no_mark_of_another_agent_and_keeps_settings():
    env = {
        "CLAUDECODE": "1",
        "CLAUDE_CONFIG_DIR": "/c",
        "TMUX": "x",
        "PATH": "/b:/a",
        "PS_UNIT": "1",
    }
    assert program.choose_environment(env, "api", "/d", "/a") == {
        "CLAUDE_CONFIG_DIR": "/c",
        "PATH": "/a:/b",
        "PWD": "/d",
        "PS_SESSION_NAME": "api",
    }


@pytest.mark.parametrize(
    "text", ["", "\0\0", "x", "a" * 99, "\n\n", "A" + A[1:], A + "x", "../../x"]
)
def test_a_damaged_id_file_names_no_conversation(text):
    assert program.parse_ids(text) == ()


def test_good_ids_survive_beside_damaged_ones():
    assert program.parse_ids(f"{A}\n\0\0\njunk\n{B}\n{A}\n") == (A, B)


HOSTILE = [
    "",
    "=",
    "pid=",
    "pid=-1\nstart=1",
    "pid=1e999\nstart=1",
    "pid=x\nstart=1",
    "\0",
    "pid=1",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_damaged_run_file_names_no_process(text):
    assert program.parse_supervisor(text) is None


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"pid":1}', '{"pid":"1","sessionId":"x"}', "\0" * 9]
)
def test_a_damaged_record_is_an_error_and_no_record(text):
    with pytest.raises(ValueError):
        program.parse_record(text)


def test_a_process_name_may_hold_anything():
    text = "7 (a) b) S 3 4 5 6 8 9 10 11 12 13 14 15 16 17 18 19 20 21 99 23"
    assert program.parse_stat(text) == ("S", 3, 4, 8, "99")


RC = ["", "export A=1", "export A=1\n", "a\r\nb\r\n"]


@pytest.mark.parametrize("text", RC)
def test_a_block_goes_into_an_rc_file_and_out_again(text):
    block = f"{program.BEGIN}\nx\n{program.END}\n"
    once = program.set_block(text, block)
    assert once.startswith(text) and once.endswith(block)
    assert program.set_block(once, block) == once
    assert program.set_block(once, "").rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("text", [program.BEGIN, program.END, f"{program.END}\n{program.BEGIN}\n"])
def test_marks_that_do_not_pair_are_refused(text):
    with pytest.raises(program.Failure):
        program.set_block(text, "x")


def test_the_units_environment_holds_no_password():
    env = {
        "PATH": '/a "b"%',
        "https_proxy": "http://u:p@h:1",
        "http_proxy": "http://h:1",
        "ANTHROPIC_API_KEY": "k",
        "CLAUDE_CODE_USE_BEDROCK": "1",
    }
    kept = program.choose_kept(env)
    assert set(kept) == {"PATH", "http_proxy", "CLAUDE_CODE_USE_BEDROCK"}
    assert 'Environment="PATH=/a \\"b\\"%%"\n' in program.format_dropin(kept)


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85", "\x1c", "\r"])
def test_what_some_readers_take_for_the_end_of_a_line_is_none(char):
    """Whether tmux keeps such a character in a name depends on the C library."""
    line = f"a{char}b\t\t%3\t77\t0\t80\t24\t5\t\n"
    panes = program.parse_panes(line + line.replace("%3", "%4"), "/s")
    assert [(p.session, p.pane_id) for p in panes] == [(f"a{char}b", "%3"), (f"a{char}b", "%4")]
    pairs = {"directory": f"/x{char}y", "why": "one\ntwo"}
    kept = program.parse_pairs(program.format_pairs(pairs))
    assert kept == {"directory": f"/x{char}y", "why": "one two"}


@pytest.mark.parametrize(
    "text, ids", [(f"\ufeff{A}\n{B}\n", (A, B)), (f"{A}\r\n\ufeff {B} \r\n", (A, B))]
)
def test_an_id_is_an_id_whatever_an_editor_put_around_it(text, ids):
    assert program.parse_ids(text) == ids


def test_a_mark_from_another_system_names_its_folder():
    text = program.format_retired(API, "retired", "now").replace("\n", "\r\n")
    assert program.parse_retired("api", "\ufeff" + text).directory == API.directory


@pytest.mark.parametrize(
    "text, deliberate",
    [
        ("", False),
        ("rc=0 signalled=0 system=running user=running at=x\n", True),
        ("rc=0 signalled=1 system=running user=running at=x\n", False),
        ("rc=0 signalled=0 system=running user=stopping at=x\n", False),
        ("rc=1 signalled=0 system=running user=running at=x\n", False),
        ("rc=0 signalled=- system=running user=- reason=other deliberate=no at=x\n", False),
        ("rc=0 signalled=- system=running user=- reason=x deliberate=yes at=x\n", True),
    ],
)
def test_an_exit_file_tells_a_deliberate_end(text, deliberate):
    assert program.parse_deliberate(text) is deliberate


@pytest.mark.parametrize(
    "name, why", [("caf\udce9", "not UTF-8"), ("a\x07b", "control characters"), ("caf\u00e9", "")]
)
def test_a_folders_name_is_refused_for_what_it_is(name, why):
    found = program.classify_directory(f"/srv/{name}")
    assert (why in found) if why else found == ""


def test_what_a_boot_would_lack_is_named_and_nothing_else():
    env = {"ANTHROPIC_API_KEY": "k", "AWS_PROFILE": "p", "https_proxy": "http://u:p@h", "X": "y"}
    assert program.choose_credentials(env) == ["ANTHROPIC_API_KEY", "https_proxy"]
    used = {"AWS_PROFILE": "p", "CLAUDE_CODE_USE_BEDROCK": "1", "ftp_proxy": "http://h"}
    assert program.choose_credentials(used) == ["AWS_PROFILE"]
    assert program.choose_kept(used).keys() == {"CLAUDE_CODE_USE_BEDROCK", "ftp_proxy"}


def test_a_long_table_says_what_it_leaves_out():
    ended = [program.Hosted(program.Launch(f"{n:012x}"), "ENDED") for n in range(13)]
    assert "(3 more that ended: " in program.format_hosted(ended)
    assert "more that ended" not in program.format_hosted(ended[:10])
