"""What the chat looks like in each state: how it comes into it, for `test_snapshots`."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from textual.app import App
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.screen import Screen

from flashllm.engine.sampling import Sampling
from flashllm.errors import MemoryCeilingTooSmall, ReadFailed
from flashllm.library.conversion_job import Conversions
from flashllm.library.models import FoundModel, OpenRequest
from flashllm.settings.resolve import ChatSettings
from flashllm.ui.chat.status import Phase
from flashllm.ui.panels.io_panel import IoPanel
from flashllm.ui.panels.neuron_map import NeuronMapView
from flashllm.ui.screens.convert import ConvertScreen
from flashllm.ui.screens.log import LogScreen
from flashllm.ui.screens.models import ModelPicker
from flashllm.ui.screens.sessions import SessionsScreen
from tests.support.chat_pilot import answers, ask, make_app, ready, say, screen_text, waiting
from tests.support.fake_engine import FakeModel, Prefill, Step
from tests.support.fake_library import BIG, CHECKPOINT, MODELS, FakeLibrary
from tests.support.screens import shown, until
from tests.ui.test_sessions_screen import Kept, Store

WIDE, USUAL, SMALL = (120, 40), (80, 24), (40, 12)
NEVER = threading.Event()
"""Steps that wait for it last until the answer is stopped."""
DOCUMENT = """\
# Oceans

An **ocean** is a *large* body of `salt water`. It covers 70 % of the earth.

- the Pacific
- the Atlantic
  - its northern half

| ocean | km² |
| --- | --- |
| Pacific | 165,250,000 |
| Atlantic | 106,460,000 |

```python
def waves(height: float) -> str:
    return "high" if height > 2 else "low"
```

> The sea is everything.
"""
HOSTILE = (
    "\x1b]0;owned\x07red \x1b[31mtext\x1b[0m, [bold]markup[/], [@click=app.bell]x[/], "
    "<b>html</b>, [a link](https://example.org), \u202eback\u202c"
)
LONG_LINE = "Lines of more than a hundred characters are hard to read. " * 4
LOG = Path(os.path.relpath(Path(__file__).with_name("log.txt")))  # no place of this machine
Prepare = Callable[[Pilot[None]], Awaitable[object]]


@dataclass(frozen=True)
class Look:
    """A state: which application, and what is done until it is there."""

    name: str
    make: Callable[[], App[None]]
    prepare: Prepare
    sizes: Sequence[tuple[int, int]] = (USUAL,)
    environment: tuple[tuple[str, str], ...] = ()


class Behind(App[None]):
    """Shows one screen, once what is behind it has been drawn."""

    def __init__(self, make: Callable[[], Screen[Any]]) -> None:
        super().__init__()
        self.make = make

    def on_mount(self) -> None:
        self.screen.call_after_refresh(lambda: self.push_screen(self.make()))


def chat(*answer: Sequence[Step], context: int = 512, **options: Any) -> Callable[[], App[None]]:
    """A chat over scripted answers."""
    return lambda: make_app(FakeModel(*(answer or [["x"]]), context=context), **options)


def refuse(request: OpenRequest, plan: object) -> None:
    """What a check finds of another model."""
    if request.choice.path is not None:
        raise OPENING


def failing(error: Exception) -> Callable[[], App[None]]:
    """A chat whose model does not open."""
    return lambda: make_app(error)


async def still(pilot: Pilot[None]) -> str:
    """The picture (SVG), once nothing is being drawn any more."""
    before, same = "", 0
    while same < 3:
        await pilot.pause(0.1)
        now = pilot.app.export_screenshot(simplify=True)
        before, same = now, same + 1 if now == before else 0
    return before


def then(*keys: str) -> Prepare:
    """Once the chat is ready, presses keys."""

    async def prepare(pilot: Pilot[None]) -> None:
        await ready(pilot)
        await pilot.press(*keys)

    return prepare


def asked(text: str, *keys: str) -> Prepare:
    """Once that is answered, presses keys."""

    async def prepare(pilot: Pilot[None]) -> None:
        await ask(pilot, text)
        await pilot.press(*keys)

    return prepare


def amid(words: str, *keys: str) -> Prepare:
    """Once these words of an answer are there, presses keys."""

    async def prepare(pilot: Pilot[None]) -> None:
        app = await ready(pilot)
        await say(pilot, "What is an ocean?")
        await until(pilot, lambda: words in screen_text(app))
        await pilot.press(*keys)

    return prepare


async def stop_it(pilot: Pilot[None]) -> None:
    """Stops an answer in its middle."""
    app = await ready(pilot)
    await say(pilot, "What is an ocean?")
    await until(pilot, lambda: "water" in "".join(answers(app)))
    await pilot.press("escape")
    await until(pilot, lambda: app.chat.activity.phase is Phase.READY)


async def branch(pilot: Pilot[None]) -> None:
    """Two answers to one question, the second one shown."""
    app = await ask(pilot, "What is an ocean?")
    await pilot.press("tab", "r")
    await until(pilot, lambda: answers(app) == ["two"])
    await ready(pilot)


def no_tokenizer() -> FoundModel:
    """A model that is whole, and not for a chat."""
    return replace(BIG, path=Path("/models/ids.flash"), name="org/ids", has_tokenizer=False)


async def waits(pilot: Pilot[None]) -> None:
    """Two messages wait for the end of an answer, a third is being typed."""
    app = await ready(pilot)
    await say(pilot, QUESTION)
    await until(pilot, lambda: "large body" in screen_text(app))
    for number, text in enumerate(("And a lake?", "Is a lake a sea?"), 1):
        await say(pilot, text)
        await until(pilot, lambda number=number: len(waiting(app)) == number)
    await pilot.press(*"What")


async def held(pilot: Pilot[None]) -> None:
    """The same, once the answer was stopped."""
    await waits(pilot)
    await pilot.press("escape")
    await ready(cast("Any", pilot))


async def switch_fails(pilot: Pilot[None]) -> None:
    """Another model is refused, and the first stays."""
    app = await ask(pilot, QUESTION)
    app.chat.open_model(BIG.choice)
    await until(pilot, lambda: "Still open" in screen_text(app))
    await ready(pilot)


async def compacted(pilot: Pilot[None]) -> None:
    """Earlier messages are summed up."""
    await ask(pilot, QUESTION)
    app = await ask(pilot, "And a lake?")
    await say(pilot, "/compact")
    await until(pilot, lambda: "summed up here" in screen_text(app))
    await ready(pilot)


async def attached(pilot: Pilot[None]) -> None:
    """A file is part of the message, and another path is being typed."""
    app = await ready(pilot)
    app.chat.prompt.attach("notes.txt", "the sea " * 40)
    await pilot.press("ctrl+j", *"What is it about?")


async def unknown_command(pilot: Pilot[None]) -> None:
    """What is wrong with a command is said."""
    app = await ready(pilot)
    await say(pilot, "/hepl")
    await until(pilot, lambda: "did you mean" in screen_text(app))


async def panels(pilot: Pilot[None]) -> None:
    """The panel of an answer."""
    app = await ask(pilot, "What is an ocean?")
    await pilot.press("f2")
    await until(pilot, lambda: app.query_one(IoPanel).display and "MB" in screen_text(app))


async def neurons(pilot: Pilot[None]) -> None:
    """The map of neurons."""
    app = await ask(pilot, "What is an ocean?")
    await pilot.press("f3")
    await until(pilot, lambda: bool(app.query_one(NeuronMapView).display))
    await pilot.pause(0.5)


async def long_paste(pilot: Pilot[None]) -> None:
    """A megabyte goes into the prompt."""
    from textual.events import Paste

    app = await ready(pilot)
    app.chat.prompt.post_message(Paste("many waves " * 100_000))
    await until(pilot, lambda: "characters]" in screen_text(app))


async def palette(pilot: Pilot[None]) -> None:
    """The palette, all of its commands."""
    app = await ready(pilot)
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(app.screen, CommandPalette))
    await pilot.press(*"conv")
    await pilot.pause(0.5)


def until_shown(words: str, *keys: str) -> Prepare:
    """A screen that stands alone: once it shows these words and looks for no more, presses keys."""

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: words in shown(pilot.app))
        await until(pilot, lambda: all(worker.is_finished for worker in pilot.app.workers))
        await pilot.press(*keys)

    return prepare


def picker(library: FakeLibrary) -> Callable[[], App[None]]:
    """The list of models."""
    return lambda: Behind(lambda: ModelPicker(library, BIG.choice))


async def found_all(pilot: Pilot[None]) -> None:
    """The search for models has ended."""
    await until(pilot, lambda: "odels" in shown(pilot.app))
    await until(pilot, lambda: "looking" not in shown(pilot.app))


def sessions(*kept: Kept) -> Callable[[], App[None]]:
    """The list of conversations."""
    return lambda: Behind(lambda: SessionsScreen(lambda: nullcontext(cast("Any", Store(*kept))), 2))


async def reasoned(pilot: Pilot[None]) -> None:
    """An answer after reasoning, a call of a tool, and why no more of the prompt was kept."""
    app = await ask(pilot, "What is an ocean?")
    app.chat.engine._model.cached[:] = [0, 1]  # type: ignore[union-attr]
    await ask(pilot, "How deep is it now?")
    await pilot.press("f2")
    await until(pilot, lambda: "reasoning cut" in screen_text(app))


KEPT = (
    Kept(1, "oceans"),
    Kept(2, "rivers and [b]lakes[/b]", preview="What is a river?"),
    Kept(3, "", model="/models/big.flash", turns=60, preview="Summarise this: " + "words " * 30),
)
OPENING = MemoryCeilingTooSmall(
    "a memory ceiling of 96 MiB is too small; the smallest that works here is 309 MiB", 309 << 20
)
READING: list[Step] = [Prefill(120, 400), NEVER]
WRITING: list[Step] = ["An **ocean** is a ", "large body of ", "water", NEVER]
BROKEN: list[Step] = ["It begins well", ReadFailed("/models/x/ffn.bundles: layer 3, offset 4096: "
                                                   "Input/output error; see dmesg")]  # fmt: skip
LONG: list[Step] = [
    f"word{number}{chr(10) * 2 if number % 60 == 59 else ' '}" for number in range(5000)
]
REASONED: list[Step] = ["<think>\n", "They ask", " for a definition.", "\n</think>\n\n", "Water."]
CALLING: list[Step] = ["<think>\n", "I have to measure.", "\n</think>\n\n", "I look.\n\n",
                       "<tool_call>\n", "functions.depth\n", '{"of": "ocean"}']  # fmt: skip
QUESTION = "What is an ocean?"
PLAIN = (("NO_COLOR", "1"),)

LOOKS = (
    Look("empty", chat(), then(), (WIDE, USUAL, SMALL)),
    Look("prefill", chat(READING), amid("120 of"), (WIDE, USUAL, SMALL)),
    Look("generating", chat(WRITING), amid("large body"), (WIDE, USUAL, SMALL)),
    Look("answered", chat([DOCUMENT]), asked(QUESTION), (WIDE, USUAL, SMALL)),
    Look("stopped", chat(WRITING), stop_it, (USUAL, SMALL)),
    Look("error", chat(BROKEN), asked(QUESTION), (USUAL, SMALL)),
    Look("not-opened", failing(OPENING), until_shown("309 MiB"), (USUAL, SMALL)),
    Look("context-nearly-full", chat(["word "] * 90, context=128), asked(QUESTION), (USUAL, SMALL)),
    Look("branches", chat(["one"], ["two"], sampling=Sampling(0.7)), branch, (USUAL, SMALL)),
    Look("selected", chat([DOCUMENT]), asked(QUESTION, "tab", "k"), (USUAL,)),
    Look("delete-asks", chat(["fine"]), asked(QUESTION, "tab", "d"), (USUAL, SMALL)),
    Look("editing", chat(["fine"]), asked(QUESTION, "tab", "k", "e"), (USUAL,)),
    Look("slash", chat(), then("slash", "s", "down"), (USUAL, SMALL)),
    Look("waiting", chat(WRITING), waits, (USUAL, SMALL)),
    Look("held", chat(WRITING), held, (USUAL,)),
    Look("switch-fails", chat(["fine"], check=refuse), switch_fails, (USUAL, SMALL)),
    Look("draw-asks", chat(["fine"]), asked(QUESTION, "tab", "r"), (USUAL, SMALL)),
    Look("compacted", chat(["one"], ["two"], ["They spoke of oceans."]), compacted, (USUAL,)),
    Look("reasoned", chat(REASONED, CALLING), reasoned, (USUAL,)),
    Look("file", chat(), attached, (USUAL,)),
    Look("unknown-command", chat(), unknown_command, (USUAL,)),
    Look(
        "several-lines", chat(), then(*"one", "ctrl+j", *"two", "ctrl+j", *"three"), (USUAL, SMALL)
    ),
    Look("long-paste", chat(), long_paste, (USUAL,)),
    Look("io-panel", chat(["word "] * 30), panels, (WIDE, USUAL, SMALL)),
    Look("neuron-map", chat(["word "] * 30), neurons, (WIDE, USUAL, SMALL)),
    Look(
        "tokens", chat(["one ", "two ", "three"]), asked(QUESTION, "tab", "t"), (WIDE, USUAL, SMALL)
    ),
    Look("help", chat(), then("f1"), (WIDE, USUAL, SMALL)),
    Look("help-keys", chat(), then("f1", "right"), (USUAL,)),
    Look("help-commands", chat(), then("f1", "left"), (USUAL,)),
    Look("log", lambda: Behind(lambda: LogScreen(LOG)), until_shown("in wait"), (USUAL, SMALL)),
    Look("wide", chat([DOCUMENT + LONG_LINE]), asked(LONG_LINE), ((200, 50),)),
    Look("palette", chat(), palette, (USUAL,)),
    Look("settings", chat(), then("f6"), (WIDE, USUAL, SMALL)),
    Look("sessions", sessions(*KEPT), until_shown("rivers"), (WIDE, USUAL, SMALL)),
    Look("sessions-empty", sessions(), until_shown("New"), (USUAL,)),
    Look("picker", picker(FakeLibrary()), found_all, (WIDE, USUAL, SMALL)),
    Look("picker-problems", picker(FakeLibrary((*MODELS, no_tokenizer()))), found_all, (USUAL,)),
    Look("picker-empty", picker(FakeLibrary((), ())), found_all, (USUAL,)),
    Look(
        "convert",
        lambda: Behind(lambda: ConvertScreen(Conversions(), FakeLibrary(), str(CHECKPOINT.path))),
        until_shown("GiB"),
        (WIDE, USUAL, SMALL),
    ),
    Look("hostile", chat([HOSTILE]), asked(HOSTILE), (USUAL,)),
    Look(
        "five-thousand-tokens",
        chat(LONG, context=20_000, max_tokens=9_000),
        asked(QUESTION),
        (USUAL, SMALL),
    ),
    Look("theme", chat([DOCUMENT], settings=ChatSettings(theme="nord")), asked(QUESTION), (USUAL,)),
    Look("no-colour", chat([DOCUMENT]), asked(QUESTION, "tab"), (USUAL,), PLAIN),
    Look("no-colour-panel", chat(["word "] * 30), panels, (USUAL,), PLAIN),
    Look("no-colour-neurons", chat(["word "] * 30), neurons, (USUAL,), PLAIN),
)
