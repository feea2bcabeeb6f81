"""What the model is told, within its 4,096 bytes."""

from __future__ import annotations

import json
import os
import sys

import pytest
from adopt_support import NEW, OLD, Box, program, task


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


def lines(context):
    return [line for line in context.split("\n") if line.startswith("#")]


def numbers(context):
    return [int(line[1:].split()[0]) for line in lines(context)]


def test_in_progress_comes_before_pending_and_then_the_number_counts(box):
    status = {1: "pending", 2: "completed", 3: "in_progress", 10: "in_progress", 9: "pending"}
    box.store(NEW, *(task(n, s) for n, s in status.items()))
    assert numbers(box.hook().context) == [3, 10, 1, 9]


def test_completed_and_internal_tasks_are_not_shown(box):
    box.store(NEW, task(1, "completed"), task(2, metadata={"_internal": True}), task(3))
    assert numbers(box.hook().context) == [3]


def test_a_list_with_nothing_open_is_silence(box):
    box.store(NEW, task(1, "completed"))
    assert box.hook().stdout == ""


def test_of_more_than_forty_the_newest_changed_are_shown(box):
    folder = box.store(NEW, *(task(n, subject="s", description="d") for n in range(1, 61)))
    for n in range(1, 61):
        box.age(f"{folder}/{n}.json", ago=n)
    context = box.hook().context
    assert numbers(context) == list(range(1, 41)) and "(20 more not shown)" in context
    assert "60 open" in context


def test_of_more_than_forty_long_ones_the_newest_changed_are_not_cut_off(box):
    long = {"subject": "s" * 150, "description": "d" * 200}
    status = {1: "in_progress", 2: "in_progress"}
    folder = box.store(NEW, *(task(n, status.get(n, "pending"), **long) for n in range(1, 61)))
    for n in range(1, 61):
        box.age(f"{folder}/{n}.json", ago=100 - n)
    context = box.hook().context
    shown = numbers(context)
    assert 5 < len(shown) < 40 and f"({60 - len(shown)} more not shown)" in context
    assert shown == [2, 1, *range(60, 62 - len(shown), -1)]


def test_what_does_not_fit_is_counted_exactly(box):
    box.store(NEW, *(task(n, subject="s" * 200, description="d" * 400) for n in range(1, 31)))
    context = box.hook().context
    shown = len(lines(context))
    assert 0 < shown < 30 and f"({30 - shown} more not shown)" in context
    assert len(context.encode()) > 4096 - 500


@pytest.mark.parametrize("letter", ["e", "é", "語", "😀", "\u0301"])
def test_texts_are_cut_between_characters(box, letter):
    box.store(NEW, task(1, subject=letter * 999, description=letter * 999))
    (line,) = lines(box.hook().context)
    assert "…" in line and "\ufffd" not in line and len(line.encode()) < 500


@pytest.mark.parametrize("odd", ["\n", "\r\n", "\t", "\0", "\x1b", "\u2028", "\u202e", "\xa0"])
def test_white_space_and_control_characters_become_one_space(box, odd):
    box.store(NEW, task(1, subject=f"a{odd}{odd}b", description=f"{odd}c{odd}"))
    assert lines(box.hook().context) == ["#1 [pending] a b: c"]


def test_half_a_surrogate_pair_is_survived(box):
    box.store(NEW, **{"1.json": json.dumps(task(1, subject="a\ud800b"))})
    assert lines(box.hook().context) == ["#1 [pending] a b: description 1"]


def test_the_own_list_is_not_said_to_be_recovered(box):
    box.session(OLD)
    box.store(NEW, task(7, subject="mine"))
    context = box.hook().context
    assert "mine" in context and OLD not in context


def test_what_is_shown_after_adopting_is_read_from_the_new_list(box):
    box.session(OLD, task(1), task(2, "in_progress"))
    assert numbers(box.hook().context) == [2, 1]


# ---- After compacting -----------------------------------------------------


def typed(text, **more):
    return {"type": "user", "message": {"role": "user", "content": text}, **more}


def test_after_compacting_the_last_prompts_and_the_transcript_are_named(box):
    records = [typed(f"prompt {n}") for n in range(1, 9)]
    parts = {"type": "user", "message": {"content": [{"type": "text", "text": "prompt 9"}]}}
    path = box.transcript(NEW, *records, parts)
    context = box.hook(source="compact").context
    assert [n for n in range(1, 10) if f"- prompt {n}" in context] == [6, 7, 8, 9]
    assert context.index("prompt 9") < context.index("prompt 8") and path in context


def test_what_no_person_typed_is_no_prompt(box):
    result = {"type": "user", "message": {"content": [{"type": "tool_result", "content": "no-1"}]}}
    others = [typed("no-2", isMeta=True), typed("no-3", isSidechain=True)]
    others += [typed("no-4", isCompactSummary=True), typed("<command-name>no-5</command-name>")]
    others += [{"type": "assistant", "message": {"content": [{"type": "text", "text": "no-6"}]}}]
    box.transcript(NEW, typed("yes"), result, *others)
    context = box.hook(source="compact").context
    assert "- yes" in context and "no-" not in context


def test_the_answers_of_the_user_are_kept(box):
    answers = {"questions": [], "answers": {"Which colour?": "Green", "How many?": "Two"}}
    content = [{"type": "tool_result", "content": "answered"}]
    answered = {"type": "user", "message": {"content": content}, "toolUseResult": answers}
    box.transcript(NEW, answered)
    context = box.hook(source="compact").context
    assert "Which colour?: Green" in context and "How many?: Two" in context


def test_the_last_todo_list_is_kept(box):
    def wrote(*texts):
        todos = [{"content": t, "status": "pending", "activeForm": t} for t in texts]
        part = {"type": "tool_use", "name": "TodoWrite", "input": {"todos": todos}}
        return {"type": "assistant", "message": {"content": [part]}}

    box.transcript(NEW, wrote("old thing"), wrote("first", "second"))
    context = box.hook(source="compact").context
    assert "[pending] first; [pending] second" in context and "old thing" not in context


def test_tasks_and_conversation_share_the_limit(box):
    box.store(NEW, *(task(n, subject="s" * 200, description="d" * 400) for n in range(1, 31)))
    box.transcript(NEW, *(typed("語" * 999) for _ in range(9)))
    context = box.hook(source="compact").context  # .context checks the limit
    assert lines(context) and "Last prompts" in context and "more not shown" in context


@pytest.mark.parametrize("name", ["x" * 200, "\x1b[31m", "語" * 60])
def test_a_long_or_odd_path_of_the_transcript_does_not_break_the_limit(box, name):
    folder = f"{box.home}/{name}/{'y' * 200}/{'z' * 200}"
    os.makedirs(folder)
    path = box.transcript(NEW, *(typed("語" * 999) for _ in range(9)))
    os.rename(path, f"{folder}/t.jsonl")
    context = box.hook(source="compact", transcript_path=f"{folder}/t.jsonl").context
    assert "Last prompts" in context and "\x1b" not in context


@pytest.mark.parametrize("source", ["startup", "resume", "fork"])
def test_only_after_compacting(box, source):
    box.transcript(NEW, typed("prompt 1"))
    assert box.hook(source=source).stdout == ""


def test_without_a_transcript_the_tasks_are_still_shown(box):
    box.store(NEW, task(1))
    assert numbers(box.hook(source="compact").context) == [1]


def test_a_damaged_transcript_is_survived(box):
    good = json.dumps(typed("good one")).encode()
    box.transcript(NEW, raw=good + b"\n\0\0\0\n" + b'{"type":"user","mess\n' + b"[" * 9999)
    said = box.hook(source="compact")
    assert "- good one" in said.context and said.stderr == ""


def peak(box, source):
    """Return the most memory (KiB) that one run of the hook had."""
    code = "import resource,subprocess,sys;subprocess.run(sys.argv[1:]);"
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,file=sys.stderr)"
    argv = [sys.executable, "-IS", "-c", code, *program()]
    return int(box.hook(source=source, argv=argv).stderr)


@pytest.mark.parametrize("source", ["startup", "compact"])
def test_memory_does_not_grow_with_the_transcripts(box, source):
    line = json.dumps(typed("x" * 9000)).encode() + b"\n"
    peaks = []
    for size in (2000, 20000):  # 18 MB, 180 MB
        box.session(OLD)
        for name, ago in ((OLD, 100), (NEW, 1)):
            box.transcript(name, raw=line * size, ago=ago)
        peaks.append(peak(box, source))
    assert peaks[1] < peaks[0] * 1.1
