"""How to bring the real claude to each screen that a pane can show.

Each function opens claude in pane `name` so that the screen of its name comes up, and returns when
it is there.  tests/data/screens/<function>-<columns>.txt holds what it looked like (2.1.332).
"""

from __future__ import annotations

import json
import os
import signal
from typing import Callable

from support import wait_until

from harness import claude
from harness.fixtures import PATIENCE, Real

Size = tuple[int, int]
BYPASS = "--dangerously-skip-permissions"


def forget(real: Real, **kept: object) -> None:
    """Rewrite .claude.json with some of its answers gone (None) or others in their place."""
    path = os.path.join(real.home, ".claude.json")
    claude.prepare_home(real.home, real.project)
    with open(path, encoding="utf-8") as f:
        answers = json.load(f)
    answers.update(kept)
    claude.write_json(path, {key: value for key, value in answers.items() if value is not None})


# ---- Before the first prompt ----------------------------------------------


def folder_trust(real: Real, name: str, size: Size) -> None:
    forget(real, projects={})
    real.open(name, size=size)
    real.see(name, "Enter to confirm")


def folder_trust_home(real: Real, name: str, size: Size) -> None:
    forget(real, projects={})
    real.open(name, size=size, cwd=real.home)
    real.see(name, "Enter to confirm")


def bypass_warning(real: Real, name: str, size: Size) -> None:
    asking = real.settings(skipDangerousModePermissionPrompt=False)
    real.open(name, BYPASS, size=size, settings=asking)
    real.see(name, "Enter to confirm")


def api_key(real: Real, name: str, size: Size) -> None:
    forget(real, customApiKeyResponses=None)
    real.open(name, size=size)
    real.see(name, "Enter to confirm")


def settings_error(real: Real, name: str, size: Size) -> None:
    broken = os.path.join(real.home, "broken.json")
    with open(broken, "w", encoding="utf-8") as f:
        f.write('{"hooks": ')
    real.open(name, size=size, settings=broken)
    real.see(name, "Enter to confirm")


def corrupt_configuration(real: Real, name: str, size: Size) -> None:
    with open(os.path.join(real.home, ".claude.json"), "w", encoding="utf-8") as f:
        f.write('{"hasCompletedOnboarding": tr')
    real.open(name, size=size)
    real.see(name, "Enter to confirm")


def mcp_approval(real: Real, name: str, size: Size) -> None:
    server = {"mcpServers": {"tickets": {"command": "/bin/false", "args": []}}}
    claude.write_json(os.path.join(real.project, ".mcp.json"), server)
    real.open(name, size=size)
    real.see(name, "Esc to reject", "Esc to cancel")


def resume_picker(real: Real, name: str, size: Size) -> None:
    real.open("before", size=size)
    real.ready("before")
    real.ask("before", "an earlier conversation")
    real.type("before", "/exit")
    real.end_status("before")
    real.open(name, "--resume", size=size)
    real.see(name, "an earlier conversation")
    real.see(name, "Esc to")


def background_refusal(real: Real, name: str, size: Size) -> None:
    done = real.claude("--bg", "work in the background")
    assert done.returncode == 0, done
    jobs = os.path.join(real.home, ".claude", "jobs")
    job = next(n for n in os.listdir(jobs) if os.path.exists(f"{jobs}/{n}/state.json"))
    with open(f"{jobs}/{job}/state.json", encoding="utf-8") as f:
        session = json.load(f)["sessionId"]
    assert wait_until(lambda: real.prompts(session), PATIENCE), "the job wrote no transcript"
    real.open(name, "--resume", session, size=size)
    real.end_status(name)


def offline_onboarding(real: Real, name: str, size: Size) -> None:
    forget(real, hasCompletedOnboarding=None)
    real.open(name, size=size, without=("ANTHROPIC_API_KEY",))
    real.end_status(name)


def theme(real: Real, name: str, size: Size) -> None:
    forget(real, hasCompletedOnboarding=None)
    real.open(name, size=size)
    real.see(name, "Syntax theme")


def security_notes(real: Real, name: str, size: Size) -> None:
    theme(real, name, size)
    real.press_until(name, "Enter", "Press Enter to continue")


# ---- The prompt, in its forms ---------------------------------------------


def idle_auto(real: Real, name: str, size: Size) -> None:
    real.open(name, size=size)
    real.see(name, "auto mode on")


def idle_default(real: Real, name: str, size: Size) -> None:
    real.open(name, "--permission-mode", "default", size=size)
    real.ready(name)


def idle_bypass(real: Real, name: str, size: Size) -> None:
    real.open(name, BYPASS, size=size)
    real.see(name, "bypass permissions on")


def idle_after_an_answer(real: Real, name: str, size: Size) -> None:
    real.open(name, BYPASS, size=size)
    real.ready(name)
    real.ask(name, "a first question")


def permission_question(real: Real, name: str, size: Size) -> None:
    real.open(name, "--permission-mode", "default", size=size)
    real.ready(name)
    real.type(name, "please <<sh touch here>>")
    real.see(name, "Do you want to proceed?")


def busy(real: Real, name: str, size: Size) -> None:
    real.open(name, BYPASS, size=size)
    real.ready(name)
    real.type(name, "take your time <<hold 600>>")
    real.see(name, "esc to interrupt")


def idle_named(real: Real, name: str, size: Size) -> None:
    """Show a prompt with a title in its upper rule."""
    real.open(name, "--name", "the name of it", size=size)
    real.ready(name)
    real.see(name, "the name of it")


def idle_classic(real: Real, name: str, size: Size) -> None:
    """Show what comes after a claude that was killed while it started."""
    real.open("killed", size=size)
    os.kill(real.record("killed")["pid"], signal.SIGKILL)
    real.open(name, size=size)
    real.ready(name)


def suspended(real: Real, name: str, size: Size) -> None:
    real.open(name, size=size)
    real.ready(name)
    real.press_until(name, "C-z", "is suspended")


def sign_in(real: Real, name: str, size: Size) -> None:
    real.open(name, size=size, without=("ANTHROPIC_API_KEY",))
    real.ready(name)
    real.type(name, "/login")
    real.see(name, "Select login method:")


def not_signed_in(real: Real, name: str, size: Size) -> None:
    real.open(name, size=size, without=("ANTHROPIC_API_KEY",))
    real.ready(name)
    real.type(name, "hello")
    real.see(name, "Not logged in")


QUOTED = """ Accessing workspace:

 {project}

 Quick safety check: Is this a project you created or one you trust?

 ❯ No, exit
   Yes, I trust this folder

 Enter to confirm · Esc to cancel
"""


def quoted_trust(real: Real, name: str, size: Size) -> None:
    """Show a conversation that quotes the dialog, as somebody debugging one would."""
    quote = os.path.join(real.project, "quote")
    with open(quote, "w", encoding="utf-8") as f:
        f.write(QUOTED.format(project=real.project))
    real.open(name, BYPASS, size=size)
    real.ready(name)
    real.ask(name, "why <<sh cat quote>>")
    real.see(name, "Enter to confirm")


def agent_view(real: Real, name: str, size: Size) -> None:
    real.open(name, BYPASS, size=size, settings=real.settings(disableAgentView=False))
    real.ready(name)
    real.ask(name, "a question")
    real.keys(name, "Left")
    real.see(name, "Needs input")


SCREENS: dict[str, Callable[[Real, str, Size], None]] = {
    show.__name__: show
    for show in (
        folder_trust,
        folder_trust_home,
        bypass_warning,
        api_key,
        settings_error,
        corrupt_configuration,
        mcp_approval,
        resume_picker,
        background_refusal,
        offline_onboarding,
        theme,
        security_notes,
        idle_auto,
        idle_default,
        idle_bypass,
        idle_after_an_answer,
        idle_named,
        idle_classic,
        suspended,
        sign_in,
        not_signed_in,
        permission_question,
        busy,
        quoted_trust,
        agent_view,
    )
}
