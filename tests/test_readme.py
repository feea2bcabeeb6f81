"""Every command that README shows is run, in its order, on a machine of its own."""

from __future__ import annotations

import os
import re

import pytest
import support
from boxlib import CLONE
from boxpeople import Person

README = os.path.join(support.ROOT, "README.md")


def blocks(kind: str) -> list[str]:
    """Return the fenced blocks of a language."""
    with open(README, encoding="utf-8") as f:
        return re.findall(rf"^```{kind}\n(.*?)^```", f.read(), re.M | re.S)


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def test_every_command_word_of_readme_exists(ps):
    with open(README, encoding="utf-8") as f:
        text = f.read()
    shown = set(re.findall(r"`(?:persistent-sessions )?([a-z]+)(?: [^`]*)?`", text))
    known = set(re.findall(r"^    ([a-z]+) ", ps("--help").stdout, re.M))
    for verb in ("open", "start", "list", "attach", "trust", "retire", "host", "install"):
        assert verb in known
    table = re.findall(r"^\| `([a-z]+)", text, re.M)
    assert set(table) <= known | shown and "open" in table


def test_every_key_of_the_configuration_is_named():
    import persistent_sessions as program

    with open(README, encoding="utf-8") as f:
        text = f.read()
    for name in program.CONFIG_KEYS:
        group, key = name.split(".")
        assert re.search(rf"{group}\.(\{{[^}}]*\b)?{key}\b", text), name


@pytest.mark.box
@pytest.mark.limit(240)
def test_the_commands_work_in_their_order(box):
    ann = Person(box, "ann")
    ann.declare(("api", f"{ann.home}/api", "-", "-", "ann"))
    ann.run("mkdir", "-p", "api")
    for command in commands():
        done = ann.run("sh", "-c", f"cd ~/{CLONE} && {command}", check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert ann.table() == {"api": "LIVE"}


SSH = """
mkdir -p ~/.ssh && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
for box in one two; do
    user=ann; [ $box = one ] || user=bob
    printf 'Host %s\\n HostName 127.0.0.1\\n User %s\\n' $box $user
done >~/.ssh/config
printf 'Host *\\n StrictHostKeyChecking no\\n LogLevel ERROR\\n Port 2222\\n' >>~/.ssh/config
"""


@pytest.mark.box
@pytest.mark.limit(240)
def test_many_boxes_are_joined_over_ssh(box):
    if box.root("test", "-x", "/usr/sbin/sshd", check=False).returncode:
        pytest.skip(f"{support.ABSENT}sshd")
    ann, bob = Person(box, "ann"), Person(box, "bob")
    for person in (ann, bob):
        person.write(f"{person.home}/rows", f"{person.name}s\t{person.home}\n")
        person.configure(manifest={"file": f"{person.home}/rows"})
        person.install()
        person.ps("start")
        person.wait_for(f"{person.name}s")
    ann.run("sh", "-ec", SSH)
    key = ann.out("cat", ".ssh/id_ed25519.pub")
    for person in (ann, bob):
        person.run("mkdir", "-p", "-m", "700", ".ssh")
        person.write(f"{person.home}/.ssh/authorized_keys", key + "\n")
    box.root("sh", "-ec", "mkdir -p /run/sshd; ssh-keygen -A >/dev/null; /usr/sbin/sshd -p 2222")
    (command,) = [line for block in blocks("bash") for line in block.splitlines()]
    shown = ann.run("bash", "-c", command).stdout.splitlines()
    assert [line.split("\t")[:3] for line in shown] == [
        ["one", "anns", "LIVE"],
        ["two", "bobs", "LIVE"],
    ]
