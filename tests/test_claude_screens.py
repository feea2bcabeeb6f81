"""The screens of the real claude still hold the phrases by which we know them.

PS_TEST_SAVE_SCREENS=1 writes them to tests/data/screens.
"""

from __future__ import annotations

import os

import pytest
from harness.fixtures import Real, claude_binary, real_claude  # noqa: F401
from harness.screens import SCREENS
from support import TESTS, wait_until

pytestmark = [pytest.mark.tmux, pytest.mark.claude_real]

STORED = os.path.join(TESTS, "data", "screens")
SIZES = ((80, 24), (200, 50))
SAVE = os.environ.get("PS_TEST_SAVE_SCREENS", "")

# Found on the one screen at every width, and on no line that the width may break.
PHRASES = {
    "folder_trust": ("Accessing workspace:", "Quick safety check:", "Yes, I trust this folder"),
    "folder_trust_home": ("Accessing workspace:", "Yes lasts for this session only"),
    "bypass_warning": ("running in Bypass Permissions mode", "Yes, I accept"),
    "api_key": ("Detected a custom API key in your environment",),
    "settings_error": ("Settings Error",),
    "corrupt_configuration": ("Configuration error",),
    "mcp_approval": ("New MCP server found in this project",),
    "resume_picker": ("Resume session",),
    "background_refusal": ("That session is running in the background",),
    "offline_onboarding": ("Unable to connect to Anthropic services",),
    "theme": ("Choose the text style",),
    "security_notes": ("Security notes:", "Press Enter to continue"),
    "sign_in": ("Select login method:",),
    "not_signed_in": ("❯", "Not logged in"),
    "suspended": ("Claude Code is suspended.",),
    "idle_named": ("❯", "─ the name of it ─"),
    "idle_classic": ("❯", "auto mode on"),
    "idle_auto": ("❯", "auto mode on"),
    "idle_default": ("❯",),
    "idle_bypass": ("❯", "bypass permissions on"),
    "permission_question": ("Do you want to proceed?", "1. Yes"),
    "agent_view": ("Your session moved to the background",),
}


def sanitized(real: Real, screen: str) -> str:
    """Put a made-up home of the same length in place of the test's own."""
    stand_in = "/home/someone/at/this/machine/which/has/a/name"[: len(real.home)]
    return screen.replace(real.home, stand_in)


def save(real: Real, screen: str, size: tuple[int, int], text: str) -> None:
    if SAVE:
        with open(os.path.join(STORED, f"{screen}-{size[0]}.txt"), "w", encoding="utf-8") as f:
            f.write(sanitized(real, text))


@pytest.mark.parametrize("screen", SCREENS)
def test_each_screen_shows_what_it_is_known_by_at_either_width(real_claude, screen):  # noqa: F811
    SCREENS[screen](real_claude, "w", SIZES[0])
    for columns, rows in SIZES:
        real_claude.tmux("resize-window", "-t", "=w:", "-x", str(columns), "-y", str(rows))
        wanted = PHRASES.get(screen, ())
        shown = wait_until(lambda: all(p in real_claude.screen("w") for p in wanted), 10)
        assert shown, f"{wanted} at {columns}:\n{real_claude.screen('w')}"


if SAVE:

    @pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
    @pytest.mark.parametrize("screen", SCREENS)
    def test_save_the_screens(real_claude, screen, size):
        SCREENS[screen](real_claude, "w", size)
        save(real_claude, screen, size, real_claude.screen("w"))


@pytest.mark.parametrize("screen", ["folder_trust", "idle_bypass"])
def test_a_tiny_pane_hides_the_prompt_or_the_choice(real_claude, screen):  # noqa: F811
    claude_hides = {"folder_trust": "Yes, I trust this folder", "idle_bypass": "shift+tab to cycle"}
    SCREENS[screen](real_claude, "w", (80, 24))
    real_claude.tmux("resize-window", "-t", "=w:", "-x", "20", "-y", "5")
    hidden = claude_hides[screen]
    assert wait_until(lambda: hidden not in real_claude.screen("w"), 10)
    save(real_claude, screen, (20, 5), real_claude.screen("w"))
