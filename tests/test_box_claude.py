"""Three sessions of the real claude on a machine that loses power, and on one that shuts down."""

from __future__ import annotations

import json
import subprocess

import pytest
from boxlib import PROGRAM
from boxpeople import PATIENCE, Person
from harness import claude
from harness.fixtures import claude_binary  # noqa: F401
from support import wait_until

# ruff: noqa: F811 (a fixture is imported and then named as an argument)

pytestmark = [pytest.mark.box, pytest.mark.claude_real, pytest.mark.limit(400)]

CLAUDE = "/usr/local/lib/claude"
NAMES = ("alpha", "beta", "beta2")  # the last two in one folder
SERVER, LOG = "/usr/local/lib/messages_api.py", "/var/log/messages-api.jsonl"
SERVICE = f"""[Service]
ExecStart=/usr/bin/python3 -IS {SERVER} --port {claude.PORT} --log {LOG}
"""


class RealPerson(Person):
    """A person with the real claude, which finds its model on the machine itself."""

    def __init__(self, box, name, binary):
        super().__init__(box, name)
        self.bring(binary)
        with open(claude.API, encoding="utf-8") as f:
            box.write(SERVER, f.read())
        box.write("/etc/systemd/system/messages-api.service", SERVICE)
        box.root("systemctl", "start", "messages-api")
        answers = {
            "hasCompletedOnboarding": True,
            "customApiKeyResponses": {"approved": [claude.KEY[-20:]], "rejected": []},
        }
        self.write(f"{self.home}/.claude.json", json.dumps(answers))
        kept = ("ANTHROPIC_", "CLAUDE_CODE_DISABLE", "DISABLE_")
        known = claude.variables(claude.PORT)
        lines = "".join(f"{k}={v}\n" for k, v in known.items() if k.startswith(kept))
        self.write(f"{self.home}/.config/environment.d/claude.conf", lines)
        self.systemctl("daemon-reload")
        self.words = lines.split()

    def bring(self, binary):
        """Copy the binary into the machine, whose homes are not those of this one."""
        argv = [*PROGRAM, "exec", self.box.folder, "sh", "-c", f"cat >{CLAUDE}; chmod 755 {CLAUDE}"]
        with open(binary, "rb") as f:
            subprocess.run(argv, stdin=f, check=True, timeout=120)
        self.run("ln", "-sf", CLAUDE, f"{self.home}/.local/bin/claude")

    def open(self, folder, *args):
        """Open a session as a person does, with the model's address in the environment."""
        self.run("mkdir", "-p", f"{self.home}/{folder}")
        words = f"cd ~/{folder} && exec env {' '.join(self.words)} persistent-sessions open "
        window = self.box.terminal(self.name, "sh", "-c", words + " ".join(args))
        try:
            window.expect("shift+tab to cycle", PATIENCE)
        finally:
            window.end()

    def requests(self):
        text = self.box.root("cat", LOG, check=False).stdout
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def ask(self, session, text):
        """Type a prompt; return the request with which the model was asked."""
        assert wait_until(lambda: "to cycle" in self.screen(session), PATIENCE)
        self.tmux("send-keys", "-t", f"={session}:", "-l", text)
        assert wait_until(lambda: text in self.screen(session), PATIENCE)
        self.tmux("send-keys", "-t", f"={session}:", "Enter")
        heard = wait_until(lambda: f"HEARD {text}" in self.screen(session), PATIENCE)
        assert heard, self.screen(session)
        where = f"{self.home}/.claude/projects"
        found = ["grep", "-rqF", f'"content":"{text}"', where]
        assert wait_until(lambda: not self.run(*found, check=False).returncode, PATIENCE)
        return [r for r in self.requests() if r.get("prompt") == text][-1]


@pytest.fixture
def three(box, claude_binary):
    """Return ann with three sessions of the real claude, each with a memory."""
    ann = RealPerson(box, "ann", claude_binary)
    ann.install()
    ann.open("alpha")
    ann.open("beta")
    ann.open("beta", "--new", "beta2")
    for name in NAMES:
        ann.ask(name, f"first-{name}")
    return ann


@pytest.mark.parametrize("how", ["power-cut", "orderly"])
def test_after_a_reboot_each_session_knows_what_it_was_told(three, how):
    before = {name: three.conversation(name) for name in NAMES}
    if how == "orderly":
        three.box.off()
    else:
        three.box.crash()
    three.box.boot()
    three.box.root("systemctl", "start", "messages-api")
    three.wait_for(*NAMES)
    earlier = {name: three.ask(name, f"again-{name}")["earlier"] for name in NAMES}
    assert earlier == {name: [f"first-{name}"] for name in NAMES}
    assert {name: three.conversation(name) for name in NAMES} == before
