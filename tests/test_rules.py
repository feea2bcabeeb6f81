"""The rules of this project that a reviewer should not have to check."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support import ROOT

LIMITS = {"persistent_sessions.py": 8200, "task_adopt.py": 525}  # lines
FILES = tuple(LIMITS)
LONGEST_FUNCTION = 60
LONGEST_LINE = 100
TOP_LEVEL = {
    "persistent_sessions.py",
    "task_adopt.py",
    "units",
    "tests",
    "install.sh",
    "README.md",
}

PURE = ("parse_", "choose_", "classify_", "plan", "decide", "format_")
EFFECTS = {
    "subprocess",
    "os",
    "sys",
    "time",
    "socket",
    "select",
    "fcntl",
    "tempfile",
    "shutil",
    "ctypes",
    "random",
    "getpass",
    "pwd",
    "open",
    "print",
    "input",
    "run",
    "say",
    "Path",
    "Tmux",
}
STRING_ONLY = {"join", "split", "basename", "dirname", "normpath", "isabs", "commonpath"}

# Spelt in pieces, or this file would break its own rule.
OUTSIDE = (
    r"\.\./sha" + "red",
    r"/wor" + "k/",
    "FIELD_" + "FAILURES",
    "CLAUDE_" + "FACTS",
    "SYSTEM_" + "FACTS",
    "DESIGN" + r"(\.md|\b \d)",
    "STYLE" + r"(\.md|\b \d)",
    "PERF" + r"\.md",
    "PEERS" + r"\.md",
    r"\(F" + r"\d{1,3}\b[-,)]",
)


def read(name: str) -> str:
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def tracked() -> list[str]:
    argv = ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, "ls-files", "-z"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    names = done.stdout.decode().split("\0")
    return [n for n in names if n and os.path.exists(os.path.join(ROOT, n))]


def python_files() -> list[str]:
    return [n for n in tracked() if n.endswith(".py") or n in FILES or n == "tests/fakes/claude"]


def functions(name: str) -> dict[str, ast.FunctionDef]:
    return {f.name: f for f in ast.parse(read(name)).body if isinstance(f, ast.FunctionDef)}


def is_string_only(node: ast.AST) -> bool:
    """Tell `os.path.join` and its like, which only look at text, from the rest of `os`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in STRING_ONLY
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "path"
    )


def names_bound(node: ast.AST) -> set[str]:
    """Return what a function calls its own: parameters and variables."""
    found = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return found | {n.id for n in names if not isinstance(n.ctx, ast.Load)}


def names_read(node: ast.AST) -> Iterator[ast.Name]:
    if is_string_only(node):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from names_read(child)


def names_used(node: ast.AST) -> set[str]:
    """Return the names a function or class takes from outside itself."""
    return {n.id for n in names_read(node)} - names_bound(node)


def effects_of(name: str, known: dict[str, ast.FunctionDef], seen: set[str]) -> set[str]:
    """Return what `name` and every function of its file that it calls may touch."""
    seen.add(name)
    used = names_used(known[name])
    found = {u for u in used if u in EFFECTS or u.startswith(("read_", "write_", "cmd_"))}
    for other in (used & known.keys()) - seen:
        found |= effects_of(other, known, seen)
    return found


@pytest.mark.parametrize("name", FILES)
def test_functions_that_parse_decide_or_format_touch_nothing(name):
    known = functions(name)
    impure = {f: effects_of(f, known, set()) for f in known if f.startswith(PURE)}
    assert {f: e for f, e in impure.items() if e} == {}


def test_functions_in_both_programs_are_identical():
    a, b = (functions(name) for name in FILES)
    shared = {n for n in a.keys() & b.keys() if n != "main" and not n.startswith("cmd_")}
    drifted = [n for n in shared if ast.dump(a[n]) != ast.dump(b[n])]
    assert drifted == []
    assert len(shared) <= 4, f"a fifth shared function means another border: {shared}"


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_defined_twice(name):
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [n.name for n in ast.parse(read(name)).body if isinstance(n, kinds)]
    assert len(names) > 30
    assert [n for n in names if names.count(n) > 1] == []


@pytest.mark.parametrize("name", FILES)
def test_definitions_come_before_uses(name):
    tree = ast.parse(read(name))
    kinds = (ast.FunctionDef, ast.ClassDef)
    line = {n.name: n.lineno for n in tree.body if isinstance(n, kinds)}
    early = []
    for top in tree.body:
        own = names_bound(top)
        early += [
            f"{name}:{use.lineno}: {use.id} is defined below, at {line[use.id]}"
            for use in names_read(top)
            if use.id not in own and line.get(use.id, 0) > top.lineno
        ]
    assert early == [], "\n".join(early)


def test_no_function_is_longer_than_a_screen():
    long = [
        f"{name}:{node.lineno}: {node.name}"
        for name in python_files()
        for node in ast.walk(ast.parse(read(name)))
        if isinstance(node, ast.FunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert long == [], "\n".join(long)


def test_no_line_is_too_wide():
    wide = [
        f"{name}:{number}"
        for name in python_files()
        for number, line in enumerate(read(name).splitlines(), 1)
        if len(line) > LONGEST_LINE
    ]
    assert wide == [], "\n".join(wide)


@pytest.mark.parametrize("name", FILES)
def test_a_program_stays_within_its_lines(name):
    assert len(read(name).splitlines()) <= LIMITS[name]


def test_everything_parses_as_python_3_9():
    for name in python_files():
        ast.parse(read(name), name, feature_version=(3, 9))


def imported(name: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(read(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("name", FILES)
def test_the_programs_import_the_standard_library_only(name):
    ours = {"persistent_sessions", "task_adopt"}
    statements = "\n".join(f"import {m}" for m in sorted(imported(name) - ours))
    argv = [sys.executable, "-IS", "-c", statements]  # -S: no site-packages
    done = subprocess.run(argv, stderr=subprocess.PIPE, encoding="utf-8")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", FILES)
def test_the_programs_do_not_import_each_other(name):
    assert not imported(name) & ({"persistent_sessions", "task_adopt"} - {name[:-3]})


def test_nothing_refers_to_what_is_not_in_the_repository():
    needle = re.compile("|".join(OUTSIDE))
    found = []
    for name in tracked():
        with open(os.path.join(ROOT, name), encoding="utf-8", errors="replace") as f:
            lines = [(n, line.strip()) for n, line in enumerate(f, 1) if needle.search(line)]
        found += [f"{name}:{n}: {line}" for n, line in lines]
    assert found == [], "\n".join(found)


def test_the_top_level_holds_only_what_belongs_there():
    top = {name.split("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


@pytest.mark.parametrize("name", sorted(TOP_LEVEL))
def test_each_part_of_the_project_is_there(name):
    assert os.path.exists(os.path.join(ROOT, name))
