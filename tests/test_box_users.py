"""One person acts for another: as root and by sudo, with nothing of the caller's going along."""

from __future__ import annotations

import json

import pytest
from boxpeople import NAME, TIMER, Person
from support import ABSENT, wait_until

pytestmark = [pytest.mark.box, pytest.mark.limit(300)]

RULE = "ann ALL=(bob) NOPASSWD: /home/bob/.local/bin/persistent-sessions\n"
MINE = {"ANTHROPIC_API_KEY": "callers", "XDG_STATE_HOME": "/tmp/callers", "TMUX_TMPDIR": "/tmp"}


def environment(person, session):
    """Return the environment of a session's claude."""
    pid = person.pairs(session, "run")["claude"]
    return person.box.read(f"/proc/{pid}/environ").split("\0")


@pytest.fixture
def people(box):
    """Ann, bob and carol, of whom bob has a session that a prompt holds."""
    box.add_user("carol", linger=False)
    ann, bob = Person(box, "ann"), Person(box, "bob")
    bob.configure(trust={"open": False}, manifest={"file": "/home/bob/rows"})
    bob.write("/home/bob/rows", "api\t/home/bob/api\n")
    bob.run("mkdir", "-p", "api")
    settings = f"/home/bob/.config/{NAME}/settings.api.json"
    bob.write(settings, '{"skipDangerousModePermissionPrompt": false}')
    bob.box.write("/home/bob/.config/environment.d/x.conf", "OF_BOB=yes\n", owner="bob")
    bob.systemctl("daemon-reexec")
    for person in (ann, bob):
        person.install()
    bob.ps("start", check=False)
    assert bob.table()["api"] == "BLOCKED"
    bob.run("rm", settings)  # the next launch is to go through
    return ann, bob


def as_root(box, *words, check=True):
    env = [f"{key}={value}" for key, value in MINE.items()]
    program = f"/home/ann/{NAME}/persistent_sessions.py"
    return box.root("env", *env, program, *words, check=check)


def test_root_looks_after_another_persons_session(people, box):
    _, bob = people
    seen = as_root(box, "list", "--json", "--user", "bob", check=False)
    assert [r["state"] for r in json.loads(seen.stdout)["sessions"]] == ["BLOCKED"], seen.stderr
    assert seen.returncode == 1
    assert as_root(box, "trust", "api", "--user", "bob").returncode == 0
    bob.prompt("api", "hello")
    bob.tmux("kill-session", "-t", "=api")
    assert as_root(box, "start", "--user=bob", "api").returncode == 0
    bob.wait_for("api")
    env = environment(bob, "api")
    assert "OF_BOB=yes" in env and "USER=bob" in env
    assert not [e for e in env if "callers" in e or e.startswith(("SUDO", "TMUX_TMPDIR=/tmp"))]
    checks = json.loads(as_root(box, "doctor", "--json", "--user", "bob", check=False).stdout)
    states = {c["name"]: c["state"] for c in checks["checks"]}
    assert {states[n] for n in ("linger", "unit", "timer", "session api") if n in states} == {"ok"}

    def told():  # the unit's journal is written by another process
        return f"]: {NAME}: api: " in as_root(box, "logs", "api", "--user", "bob").stdout

    assert wait_until(told)
    assert "api: LIVE" in as_root(box, "logs", "api", "--user", "bob").stdout
    assert "1 live" in as_root(box, "status", "--user", "bob").stdout
    assert "hello" in as_root(box, "capture", "api", "--user", "bob").stdout
    assert "start api" in as_root(box, "retire", "api", "--user", "bob").stderr
    assert bob.box.exists(f"/home/bob/.local/state/{NAME}/api.retired")


def test_doctor_names_what_is_wrong_and_its_command_mends_it(people):
    ann, _ = people
    assert "fail" not in ann.ps("doctor").stdout
    ann.systemctl("disable", "--quiet", "--now", TIMER)
    ann.box.root("loginctl", "disable-linger", "ann")
    named = set()
    for _ in range(3):  # what one command mends may show the next thing
        sick = ann.ps("doctor", check=False).stdout.splitlines()
        for line in (line for line in sick if line.startswith("fail")):
            named.add(line.split()[1])
            mend = line.partition("(try: ")[2].rstrip(")")
            run = ann.box.root if mend.startswith("sudo ") else ann.run
            run("sh", "-c", mend.replace("sudo ", ""))
        assert ann.box.manager_is_up("ann")
    assert named == {"linger:", "manager:", "timer:"}
    assert ann.ps("doctor").returncode == 0


def test_sudo_serves_whom_its_rules_allow_and_nobody_else(people, box):
    ann, bob = people
    if box.root("test", "-x", "/usr/bin/sudo", check=False).returncode:
        pytest.skip(f"{ABSENT}sudo")
    box.write("/etc/sudoers.d/ann", RULE, mode="440")
    trusted = ann.ps("trust", "api", "--user", "bob", env=MINE, check=False)
    assert trusted.returncode == 0, trusted.stderr
    bob.prompt("api", "hello")
    bob.tmux("kill-server")
    assert ann.ps("start", "--user", "bob", env=MINE).returncode == 0
    bob.wait_for("api")
    env = environment(bob, "api")
    assert "OF_BOB=yes" in env and not [e for e in env if "callers" in e or e.startswith("SUDO")]
    refused = ann.ps("list", "--user", "carol", check=False)
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1, refused.stderr
    nobody = ann.ps("list", "--user", "dave", check=False)
    assert nobody.returncode == 2 and "no user 'dave'" in nobody.stderr


def test_a_person_without_a_manager_or_an_installation_is_served_too(machine):
    machine.add_user("carol", linger=False)
    machine.put_repository("carol")
    machine.root("cp", f"/home/carol/{NAME}/persistent_sessions.py", "/srv/")
    program = "/srv/persistent_sessions.py"
    seen = machine.root(program, "list", "--user", "carol")
    assert seen.stdout.startswith("NAME") and machine.exists("/home/carol/.local/state")
    done = machine.root(program, "doctor", "--user", "carol", check=False)
    assert done.returncode == 1
    assert "fail  linger: off" in done.stdout and "enable-linger carol" in done.stdout
