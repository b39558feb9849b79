"""What a conversion is asked for: a form of the convert screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Label, Select, Static

from flashllm.library.conversion_options import INSIDE, NO_PREDICTORS, TRAIN, ConvertOptions
from flashllm.library.models import Checkpoint
from flashllm.ui.widgets.line_input import LineInput
from flashllm.units import format_bytes

AS_SOURCE = "source"
DTYPES = (
    ("as the checkpoint", AS_SOURCE),
    ("f32", "f32"),
    ("f16", "f16"),
    ("bf16", "bf16"),
    ("int8 (lossy: rounded)", "int8"),
    ("int4 (lossy: rounded much)", "int4"),
    ("mxfp4 (lossy: more than int4, but for models trained in it)", "mxfp4"),
)
PREDICTORS = (
    ("none (exact)", NO_PREDICTORS),
    ("train now (lossy)", TRAIN),
    ("of the checkpoint (lossy)", INSIDE),
)


ONCE, AGAIN = "once", "again"
ROUNDING = (
    ("refuse what was rounded before and would be again", ONCE),
    ("round it a second time (lossy)", AGAIN),
)
_REQUANTISE = "--requantise"
"""What messages about such weights name."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    source: Path
    destination: Path
    options: ConvertOptions


class ConvertForm(VerticalScroll):
    """Fields for a `Wish`; says `Changed` whenever one of them does."""

    DEFAULT_CSS = """
    ConvertForm { height: 1fr; }
    ConvertForm Horizontal { height: 1; }
    ConvertForm Label { width: 13; color: $text-muted; }
    ConvertForm Input { width: 1fr; }
    ConvertForm Select { width: 1fr; height: auto; }
    ConvertForm .hidden { display: none; }
    ConvertForm #preview { height: auto; margin: 1 0 0 0; color: $text-muted; }
    ConvertForm #preview.-error { color: $text-error; }
    """

    class Changed(Message):
        """Another wish, or None while the fields make none."""

        def __init__(self, wish: Wish | None) -> None:
            super().__init__()
            self.wish = wish

    class SourceChanged(Message):
        """Another source, so that a destination may be proposed."""

        def __init__(self, source: Path) -> None:
            super().__init__()
            self.source = source

    def __init__(self, source: str, destination: str) -> None:
        super().__init__()
        self._source, self._destination = source, destination
        self._proposed = ""

    def compose(self) -> ComposeResult:
        """A row for each field, and what it would come to."""
        with Horizontal():
            yield Label("checkpoint")
            yield LineInput(
                self._source, compact=True, id="source", placeholder="its directory, or a .gguf"
            )
        with Horizontal(classes="hidden", id="cache-row"):
            yield Label("from cache")
            yield Select[Path]((), compact=True, id="cache", prompt="Hugging Face cache")
        with Horizontal():
            yield Label("write to")
            yield LineInput(
                self._destination,
                compact=True,
                id="destination",
                placeholder="a directory that is not there",
            )
        with Horizontal():
            yield Label("weights")
            yield Select(DTYPES, compact=True, id="dtype", allow_blank=False)
        with Horizontal():
            yield Label("predictors")
            yield Select(PREDICTORS, compact=True, id="predictors", allow_blank=False)
        with Horizontal(classes="hidden", id="calibration-row"):
            yield Label("train on")
            yield LineInput(
                compact=True, id="calibration", placeholder="text file (default: its own)"
            )
        with Horizontal(classes="hidden", id="rounding-row"):
            yield Label("rounding")
            yield Select(ROUNDING, compact=True, id="rounding", allow_blank=False)
        yield Static(id="preview", markup=False)

    def on_mount(self) -> None:
        """What was given is looked at."""
        self.query_one("#source", Input).focus()
        self._tell_source()
        self.post_message(self.Changed(self.wish()))

    def wish(self) -> Wish | None:
        """What the fields say."""
        source, destination = self._text("source"), self._text("destination")
        if not source or not destination:
            return None
        dtype = self._chosen("dtype")
        calibration = self._text("calibration")
        predictors = self._chosen("predictors")
        options = ConvertOptions(
            None if dtype == AS_SOURCE else dtype,
            predictors,
            _path(calibration) if calibration and predictors == TRAIN else None,
            requantise=self._chosen("rounding") == AGAIN,
        )
        return Wish(_path(source), _path(destination), options)

    def propose(self, source: Path, destination: Path) -> None:
        """A destination, unless the user has written another, or the source is another now."""
        field = self.query_one("#destination", Input)
        if field.value in ("", self._proposed) and _path(self._text("source")) == source:
            field.value = str(destination)
            self._proposed = field.value  # as it is shown

    def offer(self, checkpoints: Sequence[Checkpoint]) -> None:
        """What lies in the cache can be chosen."""
        if not checkpoints:
            return
        # Not plain strings, which would be read as markup.
        ordered = sorted(checkpoints, key=lambda one: bool(one.problem))
        choices = [(Content(_line(one)), one.path) for one in ordered]
        self.query_one("#cache", Select).set_options(choices)
        self.query_one("#cache-row").remove_class("hidden")

    def show_preview(self, lines: Sequence[str], is_error: bool = False) -> None:
        """What the wish would come to, or why it comes to nothing."""
        shown = self.query_one("#preview", Static)
        shown.update(Content("\n".join(lines)))
        shown.set_class(is_error, "-error")
        if is_error:
            self.offer_rounding("\n".join(lines))

    def offer_rounding(self, message: str) -> None:
        """Weights that were rounded may be again, where a message is about that."""
        if _REQUANTISE in message:
            self.query_one("#rounding-row").remove_class("hidden")

    @on(Input.Changed)
    def _take_text(self, event: Input.Changed) -> None:
        event.stop()
        if event.input.id == "source":
            self._tell_source()
        self.post_message(self.Changed(self.wish()))

    @on(Select.Changed)
    def _take_choice(self, event: Select.Changed) -> None:
        event.stop()
        if event.select.id == "cache":
            if isinstance(event.value, Path):
                self.query_one("#source", Input).value = str(event.value)
            return
        trains = self._chosen("predictors") == TRAIN
        self.query_one("#calibration-row").set_class(not trains, "hidden")
        self.post_message(self.Changed(self.wish()))

    def _tell_source(self) -> None:
        if text := self._text("source"):
            self.post_message(self.SourceChanged(_path(text)))

    def _text(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value.strip()

    def _chosen(self, name: str) -> str:
        return cast("str", self.query_one(f"#{name}", Select).value)


def _path(text: str) -> Path:
    # A user that nobody knows is no home, but a name.
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _line(checkpoint: Checkpoint) -> str:
    if not checkpoint.revision:  # nothing that could be chosen, but something to know
        return f"{checkpoint.name}: {checkpoint.problem}"
    # Chosen, the preview says why not.
    what = "cannot be converted" if checkpoint.problem else format_bytes(checkpoint.size_bytes)
    return f"{checkpoint.name} {checkpoint.revision}: {what}"
