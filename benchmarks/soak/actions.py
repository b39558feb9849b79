"""What a user does with the chat, at random, and what happens to it: keys, signals, a lost engine.

Every action comes back to a chat that is ready; `ReadFailed` where it does not.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable

from benchmarks.chat.script import WORDS
from benchmarks.chat.terminal import ChatTerminal
from benchmarks.soak.processes import engine_of
from flashllm.errors import ReadFailed

KILL = "kill the engine"
MOST = "what takes most"
READY, FAILED, REFUSED = "ready", "failed", "there is no command /nonsense"
ESCAPE, ENTER, DOWN = "\x1b", "\r", "\x1b[B"
CTRL_C, CTRL_N, CTRL_R = "\x03", "\x0e", "\x12"
CTRL_Q = "\x11"
F1, F2, F3, F4, F5, F6 = "\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS", "\x1b[15~", "\x1b[17~"
PAGE_UP, PAGE_DOWN = "\x1b[5~", "\x1b[6~"
PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"
QUESTIONS = (
    "What is an ocean?", "What does carbon mean?", "What is the opposite of fast?", "Define river",
    "And its opposite?", "What is a lake?", "Tell me about rain", "Use it in a sentence",
    "What is a tree?", "ünïcödé 漢字 👍?", "a", "Why?",
)  # fmt: skip
PAGES = {F1: "Help: ", F4: "Type to search", F5: "Look again", F6: "Leave as it was"}
"""Keys of pages, and what is shown nowhere else."""
SHOW_SECONDS, CLOSE_TRIES = 5.0, 3
CLEAR_LINE = "\x05\x15\x7f"
"""To its end, all to the left of it, and the break before it."""
SETTLE_SECONDS = 0.15
COLUMNS, ROWS = (80, 160), (20, 50)
"""Of the screen, at least and at most. A lower one does not show the state of the engine, by which
the user knows what goes on."""
FULL_TURNS = 40
"""Short turns that a conversation has on the highest screen, and above and below it."""
FULL_PASTES, LENGTHS = 4, (50, 400)
"""Words of a text that is pasted; and so many of the longest ones fill a context."""


class User:
    """Drives a chat on a terminal, by a random generator of its own."""

    def __init__(self, terminal: ChatTerminal, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.keeps_largest = True
        """Whether another size of the screen is the largest, as it is in the beginning."""
        self._terminal = terminal
        self._random = random.Random(seed)
        self._actions: dict[str, tuple[int, Callable[[], None]]] = {
            "ask": (40, self._ask),
            "ask at length": (6, self._ask_at_length),
            "stop": (12, lambda: self._stop(ESCAPE)),
            "stop with Ctrl+C": (4, lambda: self._stop(CTRL_C)),
            "stop and continue": (4, self._continue),
            "regenerate": (5, self._regenerate),
            "two at once": (3, self._ask_twice),
            "new conversation": (7, self._new),
            "switch conversation": (8, self._switch),
            "pages": (5, self._pages),
            "panels": (4, self._panels),
            "scroll": (5, self._scroll),
            "wrong command": (2, self._wrong),
            "resize": (2, self._resize),
            "SIGSTOP to the chat": (2, self._pause_chat),
            "slow engine": (2, self._pause_engine),
            KILL: (3, self._kill_engine),
        }

    def choose(self, spares_engine: bool = False) -> str:
        """The next action, by weight."""
        names = [name for name in self._actions if not (spares_engine and name == KILL)]
        return self._random.choices(names, [self._actions[name][0] for name in names])[0]

    def do(self, action: str) -> None:
        """One action, to its end."""
        self._actions[action][1]()
        self.counts[action] += 1
        self._terminal.forget()

    def open(self) -> None:
        """Waits for the model."""
        self._terminal.wait_for(READY)
        self._settle()

    def reach_most(self) -> None:
        """What takes most memory: what grows afterwards grows by more than being used.

        A conversation that fills the largest screen, panels beside it and each page over it, the
        same one opened from another, and a context that is full: by chance the first came after
        half an hour, panels below a page after 17 minutes, and the last one after fifty. The screen
        stays that large, so that what chance puts together in the beginning is seen there too.
        """
        self._resize()
        self._new()
        for _ in range(FULL_TURNS):
            self._ask()
        self._toggle_panels()
        self._ask()
        for key in PAGES:
            self._open_page(key)
            self._leave_page(ESCAPE)
        self._new()
        self._ask()
        self._open_session(1)
        self._fill_context()
        self._toggle_panels()
        self._new()

    # Actions

    def _ask(self) -> None:
        self._answer(self._random.choice(QUESTIONS))

    def _ask_at_length(self) -> None:
        self._paste(self._random.randint(*LENGTHS))

    def _regenerate(self) -> None:
        self._ask()
        self._answer("/regenerate")

    def _ask_twice(self) -> None:
        self._type(f"{self._random.choice(QUESTIONS)}{ENTER}")
        self._answer(self._random.choice(QUESTIONS))
        self._settle(1.0)

    def _stop(self, key: str) -> None:
        since = self._type(f"{self._random.choice(QUESTIONS)}{ENTER}")
        self._settle(self._random.uniform(0.05, 0.8))
        self._type(key)
        self._terminal.wait_for(READY, since)
        self._settle()
        self._clear()

    def _continue(self) -> None:
        self._stop(ESCAPE)
        self._type(f"/continue{ENTER}")
        self._settle(1.5)
        self._clear()

    def _new(self) -> None:
        self._type(CTRL_N)
        self._settle(0.5)  # what is told before it is there goes with the old one

    def _switch(self) -> None:
        self._open_session(self._random.randint(0, 4))

    def _open_session(self, row: int) -> None:
        self._open_page(F4)
        self._type(DOWN * row)
        self._settle()
        self._leave_page(ENTER)
        self._settle(0.5)

    def _pages(self) -> None:
        self._open_page(self._random.choice(list(PAGES)))
        self._leave_page(ESCAPE)

    def _panels(self) -> None:
        for key in self._random.choices((F2, F3), k=2):
            self._type(key)
            self._settle(0.4)

    def _scroll(self) -> None:
        for key in self._random.choices((PAGE_UP, PAGE_DOWN), k=6):
            self._type(key)
            self._settle(0.05)

    def _wrong(self) -> None:
        since = self._type(f"/nonsense{ENTER}")
        # It may wait behind a question, and comes back into the prompt when it is refused.
        self._terminal.wait_for(REFUSED, since)
        self._settle()
        self._clear()

    def _resize(self) -> None:
        size = self._random.randint(*COLUMNS), self._random.randint(*ROWS)
        self._terminal.resize(*(COLUMNS[1], ROWS[1]) if self.keeps_largest else size)
        self._settle(0.4)

    def _pause_chat(self) -> None:
        self._terminal.process.send_signal(signal.SIGSTOP)
        self._settle(self._random.uniform(0.05, 0.5))
        self._terminal.process.send_signal(signal.SIGCONT)
        self._settle(0.3)

    def _pause_engine(self) -> None:
        """A disk that takes its time, as far as the chat can tell."""
        since = self._type(f"{self._random.choice(QUESTIONS)}{ENTER}")
        engine = engine_of(self._terminal.process.pid)
        if engine is not None:
            engine.suspend()
            self._settle(self._random.uniform(0.5, 2.5))
            engine.resume()
        self._terminal.wait_for(READY, since)
        self._settle()

    def _kill_engine(self) -> None:
        engine = engine_of(self._terminal.process.pid)
        if engine is None:
            return
        since = self._terminal.position
        if self._random.random() < 0.5:
            self._type(f"{self._random.choice(QUESTIONS)}{ENTER}")
            self._settle(self._random.uniform(0.0, 0.3))
        engine.kill()
        self._terminal.wait_for(FAILED, since)
        self._settle()
        since = self._type(CTRL_R)
        self._terminal.wait_for(READY, since)
        self._settle()
        self._clear()
        self._new()
        self._fill_context()

    # Steps

    def _toggle_panels(self) -> None:
        for key in (F2, F3):
            self._type(key)
            self._settle(0.4)

    def _fill_context(self) -> None:
        """The engine's keys and values are all in memory that it has touched from then on."""
        for _ in range(FULL_PASTES):
            self._paste(LENGTHS[1])

    def _paste(self, count: int) -> None:
        words = self._random.choices(WORDS, k=count)
        self._answer(f"{PASTE_BEGIN}{' '.join(words)}{PASTE_END}")

    def _answer(self, text: str) -> None:
        """Sends a text, until the chat is ready again."""
        self._type(text)
        self._settle(0.05)
        since = self._type(ENTER)
        self._terminal.wait_for(READY, since)
        self._settle()

    def _open_page(self, key: str) -> None:
        """Opens a page; keys that come before it is there would be for what is below."""
        since = self._type(key)
        self._shows(PAGES[key], since)

    def _leave_page(self, key: str) -> None:
        """Closes a page: all below it is drawn again then."""
        for pressed in (key, *[ESCAPE] * CLOSE_TRIES):
            if self._shows(READY, self._type(pressed)):
                break
        self._settle()

    def _shows(self, text: str, since: int) -> bool:
        """Whether something comes within a while."""
        try:
            self._terminal.wait_for(text, since, SHOW_SECONDS)
        except ReadFailed:
            return False
        return True

    def _clear(self) -> None:
        """Empties the prompt, into which an unanswered question comes back."""
        self._type(CLEAR_LINE * 3)
        self._settle()

    def _type(self, keys: str) -> int:
        """Presses keys; returns the position behind all that was shown before."""
        since = self._terminal.position
        self._terminal.type(keys)
        return since

    def _settle(self, seconds: float = SETTLE_SECONDS) -> None:
        self._terminal.read(seconds)
