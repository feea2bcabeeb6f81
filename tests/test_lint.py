"""What other programs think of ours.  None of them is installed by this project."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess

import pytest
from support import ABSENT, ROOT, TESTS
from test_rules import FILES, tracked

SHELL = ("install.sh", "tests/run", ".ci/run")
WORDS_OF_OURS = "ist"

TOOL_PATH = os.environ["PATH"]  # as it was before any test had a home of its own


@pytest.fixture
def check(private):
    """Run a checker in the repository and fail with what it said."""

    def run(tool, *args):
        path = shutil.which(tool, path=TOOL_PATH)
        if not path:
            pytest.skip(f"{ABSENT}{tool}")
        argv = [path, *args]
        done = subprocess.run(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
        )
        assert done.returncode == 0, done.stdout

    return run


def test_what_names_an_interpreter_can_be_executed_and_nothing_else():
    marked, named = set(), set()
    for name in tracked():
        path = os.path.join(ROOT, name)
        if os.stat(path).st_mode & stat.S_IXUSR:
            marked.add(name)
        with open(path, "rb") as f:
            if f.read(2) == b"#!":
                named.add(name)
    assert marked == named


@pytest.mark.parametrize("name", FILES)
def test_a_program_names_an_isolated_interpreter(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        assert f.readline() == "#!/usr/bin/python3 -IS\n"


def test_ruff_is_content(check):
    names = [n for n in tracked() if n.endswith(".py")] + ["tests/box"]
    options = ["-q", "--no-cache", "--output-format", "concise"]
    check("ruff", "check", *options, "--config", os.path.join(TESTS, "ruff.toml"), *names)


@pytest.mark.parametrize("name", FILES)
def test_mypy_is_content(check, name):
    check("mypy", "--config-file", os.path.join(TESTS, "mypy.ini"), name)


def test_shellcheck_is_content(check):
    check("shellcheck", *SHELL)


def test_codespell_is_content(check):
    written = [n for n in tracked() if not n.startswith("tests/data/")]  # the rest is others' text
    check("codespell", "--ignore-words-list", WORDS_OF_OURS, *written)


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_script_parses(name):
    shell = "bash" if name.startswith(".ci") else "sh"
    argv = [shell, "-n", os.path.join(ROOT, name)]
    assert subprocess.run(argv, stderr=subprocess.PIPE).stderr == b""
