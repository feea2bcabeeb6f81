"""Several people, and memory running out: what happens to one session is not the others' matter."""

from __future__ import annotations

import pytest
from boxpeople import Person
from support import wait_until

pytestmark = [pytest.mark.box, pytest.mark.limit(300)]

# Puts a process where the kernel has no page left for it; the old hierarchy has no other way in.
STARVE = """
mkdir -p /run/memory
mountpoint -q /run/memory || mount -t cgroup -o memory memory /run/memory
mkdir -p /run/memory/starved
echo $1 >/run/memory/starved/cgroup.procs
echo 1 >/run/memory/starved/memory.force_empty || :
echo 4096 >/run/memory/starved/memory.limit_in_bytes
"""
MANIFEST = """
git init -q -b main --bare /srv/origin.git
git clone -q /srv/origin.git /srv/elsewhere 2>&1
cat >/srv/elsewhere/persistent-sessions.tsv
cd /srv/elsewhere
git add . && git -c user.name=root -c user.email=root@example.org commit -qm rows
git push -q origin HEAD && git clone -q /srv/origin.git /srv/boxes
"""


@pytest.fixture
def ann(box):
    person = Person(box, "ann")
    person.install()
    return person


def starve(person, session):
    """Have the kernel kill the claude of a session because memory has run out."""
    pid = person.pairs(session, "run")["claude"]
    controllers = person.box.read("/sys/fs/cgroup/cgroup.controllers").split()
    if "memory" in controllers:
        scope = person.out("sh", "-c", f"basename $(cut -d: -f3 /proc/{pid}/cgroup | tail -1)")
        person.box.root("sh", "-c", f"echo 1000 >/proc/{pid}/oom_score_adj")
        person.systemctl("set-property", "--runtime", scope, "MemoryMax=8M")
    else:
        person.box.root("sh", "-ec", STARVE, "sh", pid)
    person.tmux("send-keys", "-t", f"={session}:", "-l", "x" * 2000)
    assert wait_until(lambda: not person.box.exists(f"/proc/{pid}"), 30)
    if "memory" in controllers:
        person.systemctl("set-property", "--runtime", scope, "MemoryMax=infinity")
    else:
        person.box.root("rmdir", "/run/memory/starved")


def test_a_session_killed_for_lack_of_memory_comes_back_and_the_others_never_left(ann):
    for name in ("alpha", "beta", "gamma"):
        ann.open(name)
        ann.prompt(name, f"first-{name}")
    before, conversation = ann.panes(), ann.conversation("alpha")
    starve(ann, "alpha")
    assert wait_until(lambda: ann.pairs("alpha", "exit").get("rc") == "137", 20)
    ann.hurry()
    ann.wait_for("alpha", "beta", "gamma")
    after = ann.panes()
    assert (after["beta"], after["gamma"]) == (before["beta"], before["gamma"])
    assert after["alpha"] != before["alpha"] and ann.conversation("alpha") == conversation


def test_two_people_with_rows_in_one_manifest_get_their_own_rows_only(box):
    rows = [
        ("ours", "/home/ann/ours", "-", "-", "ann"),
        ("theirs", "/home/bob/theirs"),  # no user: the folder's owner
        ("nobodys", "/home/ann/nobodys", "-", "-", "carol"),
    ]
    text = "".join("\t".join(row) + "\n" for row in rows)
    box.root("sh", "-ec", MANIFEST, input=text)
    ann, bob = Person(box, "ann"), Person(box, "bob")
    for person, folder in ((ann, "ours"), (bob, "theirs")):
        person.run("mkdir", "-p", folder)
        person.configure(manifest={"clone": "/srv/boxes"})
        person.install()
    box.crash()
    box.boot()
    ann.wait_for("ours")
    bob.wait_for("theirs")
    assert (set(ann.panes()), set(bob.panes())) == ({"ours"}, {"theirs"})


def test_one_person_s_reinstallation_is_not_seen_by_the_other(box):
    ann, bob = Person(box, "ann"), Person(box, "bob")
    for person in (ann, bob):
        person.install()
        person.open("work")
    before = bob.panes()
    ann.run("persistent-sessions/install.sh", "--uninstall", check=False)
    ann.tmux("kill-server")
    assert bob.panes() == before and bob.live() == {"work"}
