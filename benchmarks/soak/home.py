"""A home that has been used for months: as many conversations as a page lists, and a full history.

A chat that begins with none takes a little more with every conversation and every line that was
typed, until both are at their limits, which a soak would find after half an hour.
"""

from __future__ import annotations

import random
import time

from benchmarks.chat.script import WORDS
from flashllm.conversations.store import NEWEST_MAX, SessionStore
from flashllm.conversations.tree import Turn
from flashllm.system.paths import history_file
from flashllm.ui.prompt.history import ENTRIES_MAX, MEMORY_BYTES_MAX, InputHistory

TURNS = 8
"""Of each conversation, questions and answers."""
WORDS_OF_A_TURN = 12


def furnish(model: str, seed: int) -> None:
    """Keeps conversations with a model, and a history, where chats of this home find them."""
    chosen = random.Random(seed)
    now = time.time()
    with SessionStore() as store:
        for _ in range(NEWEST_MAX):
            session = store.create(model=model)
            for number in range(1, TURNS + 1):
                answers = number % 2 == 0
                turn = Turn(
                    number,
                    number - 1 or None,
                    "assistant" if answers else "user",
                    _text(chosen, WORDS_OF_A_TURN),
                    finish_reason="stop" if answers else None,
                    created=now,
                )
                store.save_turn(session, turn)
    typed = InputHistory(history_file())
    for _ in range(ENTRIES_MAX):
        typed.add(_text(chosen, MEMORY_BYTES_MAX // ENTRIES_MAX // min(map(len, WORDS))))


def _text(chosen: random.Random, words: int) -> str:
    return " ".join(chosen.choices(WORDS, k=words))
