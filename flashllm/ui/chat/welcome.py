"""What an empty conversation says: what the open model can be asked, and how to get another."""

from __future__ import annotations

from collections.abc import Mapping

from flashllm.library.models import ModelChoice
from flashllm.system.demos import DEMO_NAME, EXPERTS_DEMO_NAME
from flashllm.ui.commands.bindings import (
    EVERYWHERE_BINDINGS,
    INVITATION_BINDINGS,
    PROMPT_BINDINGS,
)
from flashllm.ui.commands.keys import bindings_in, reworded
from flashllm.ui.transcript.invitation import Invitation

DEMO_SAID = "This small model came with flashllm; it explains English words."
EXPERTS_DEMO_SAID = (
    "This small mixture of experts came with flashllm; it explains a few hundred English words."
)
SAID = "Ask something below, or one of these:"
WORDS = (
    "What does forest mean?",
    "What is the opposite of happy?",
    "Give me an example of rain.",
)
COMMON_WORDS = (
    "What does ocean mean?",
    "What is the opposite of happy?",
    "What does music mean?",
)
DEMOS = {
    DEMO_NAME: (DEMO_SAID, WORDS),
    EXPERTS_DEMO_NAME: (EXPERTS_DEMO_SAID, COMMON_WORDS),
}
QUESTIONS = (
    "What can you help me with?",
    "How does a rainbow form?",
    "Write a short poem about rain.",
)
BEGINNINGS = (
    "The capital of France is",
    "Once upon a time, there was",
    "The states of matter are",
)
"""For models that were not trained to chat: they go on with a text."""
KEYS = "Tab and 1, 2 or 3 ask one of them, or a click. F1 explains keys and numbers."
MODELS = (
    "Models: F5 opens those on this machine. `flashllm models` lists some that run well here, and "
    "`flashllm pull ORG/NAME --convert` gets one."
)


def invitation(
    choice: ModelChoice, has_chat_template: bool, keymap: Mapping[str, str]
) -> Invitation:
    """For the model that is open, or is being opened; with the keys as they are now."""
    bindings = bindings_in(EVERYWHERE_BINDINGS, PROMPT_BINDINGS, INVITATION_BINDINGS)
    more = reworded(f"{KEYS}\n{MODELS}", bindings, keymap)
    if (demo := choice.demo_name) is not None:
        return Invitation(*DEMOS[demo], more)
    return Invitation(SAID, QUESTIONS if has_chat_template else BEGINNINGS, more)
