"""Converts a checkpoint from inside the application: a form (`convert_form`), then the progress."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Button, ProgressBar, Select, Static
from textual.worker import get_current_worker

from flashllm.errors import FlashllmError
from flashllm.library.conversion_formatting import (
    format_amount,
    format_job,
    format_phase,
    format_preview,
)
from flashllm.library.conversion_job import Conversions, ConvertJob, JobState, JobStatus
from flashllm.library.conversion_options import ConvertOptions
from flashllm.library.conversion_preview import Preview
from flashllm.library.formatting import clean
from flashllm.library.models import Checkpoint
from flashllm.library.open_check import can_chat
from flashllm.ui.commands.bindings import CONVERT_BINDINGS
from flashllm.ui.screens.convert_form import ConvertForm, Wish
from flashllm.ui.screens.page import Page
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.ui.widgets.thread_work import thread_work

PREVIEW_SECONDS = 0.2
"""Waited for the next letter before a preview is made."""
NOT_FOR_CHATS = "It came without a tokenizer, which a chat needs; `flashllm run"
STEPS = 1000
"""Of the bar."""
_LOG = logging.getLogger("flashllm")


class Preparation(Protocol):
    """What is known before a conversion; `flashllm.library.library.Library` knows it."""

    def checkpoints(self) -> Iterator[Checkpoint]:
        """What could be converted."""
        ...

    def destination(self, source: Path) -> Path:
        """Where a model of `source` would go."""
        ...

    def prepare(self, destination: Path) -> None:
        """Sees to it that a model can be written there; a `FlashllmError` where it cannot."""
        ...

    def preview(self, source: Path, destination: Path, options: ConvertOptions) -> Preview:
        """What a conversion would make; a `FlashllmError` where it would make nothing."""
        ...


class ConvertScreen(Page[Path | None]):
    """Asks, converts, shows how far it is; the path of a model that is to be opened, or None.

    The conversion goes on when the screen is left; when it is opened again it is shown, or how it
    ended.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*CONVERT_BINDINGS]
    DEFAULT_CSS = """
    ConvertScreen { align: center middle; }
    ConvertScreen #convert { width: 96; max-width: 100%; height: 22; max-height: 100%;
        background: $surface; border: round $border; padding: 0 1; }
    ConvertScreen #convert-title { height: 1; color: $text-muted; text-wrap: nowrap;
        text-overflow: ellipsis; }
    ConvertScreen #job { height: 1fr; overflow-y: auto; }
    ConvertScreen #job Static { height: auto; }
    ConvertScreen ProgressBar { width: 100%; margin: 1 0; }
    ConvertScreen ProgressBar Bar { width: 1fr; }
    ConvertScreen #buttons { height: 1; }
    ConvertScreen Button { margin: 0 2 0 0; }
    ConvertScreen.-small #convert { border: none; padding: 0; }
    """

    class Offered(Message):
        """What lies in the cache."""

        def __init__(self, checkpoints: list[Checkpoint]) -> None:
            super().__init__()
            self.checkpoints = checkpoints

    class Proposed(Message):
        """Where a model would go."""

        def __init__(self, source: Path, destination: Path) -> None:
            super().__init__()
            self.source = source
            self.destination = destination

    class Previewed(Message):
        """What a wish would come to; an error where it comes to nothing."""

        def __init__(self, wish: Wish, lines: list[str], is_error: bool) -> None:
            super().__init__()
            self.wish = wish
            self.lines = lines
            self.is_error = is_error

    class JobChanged(Message):
        """The conversion went on, or ended."""

    def __init__(
        self,
        conversions: Conversions,
        preparation: Preparation,
        source: str = "",
        destination: str = "",
    ) -> None:
        super().__init__()
        self._conversions = conversions
        self._source, self._destination = source, destination
        self._preparation = preparation
        self._ready: Wish | None = None
        """What was looked at and can be done."""
        self._eager: Wish | None = None
        """What is to begin once it has been looked at."""
        self._timer: Timer | None = None
        self._shows_job = conversions.is_news
        self._is_for_chats: dict[Path, bool] = {}
        self._stop_listening: Callable[[], None] = lambda: None

    def compose(self) -> ComposeResult:
        """Either the form or the job; buttons for what can be done."""
        with Vertical(id="convert"):
            yield Static(id="convert-title", markup=False)
            yield ConvertForm(self._source, self._destination)
            with Vertical(id="job"):
                yield Static(id="job-text", markup=False)
                yield ProgressBar(total=STEPS, show_eta=False, show_percentage=True)
                yield Static(id="job-more", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Convert", compact=True, variant="primary", action="screen.start")
                yield Button("Stop", compact=True, variant="warning", action="screen.stop")
                yield Button("Open", compact=True, variant="success", action="screen.open")
                yield Button("Another", compact=True, action="screen.again")
                yield Button("Close", compact=True, action="screen.leave")
            yield KeyFooter()

    def on_mount(self) -> None:
        """Looks for checkpoints; follows the conversion."""
        self._stop_listening = self._conversions.listen(self._hear)
        self._look_for_checkpoints()
        self._show()

    def on_unmount(self) -> None:
        """The conversion goes on without it."""
        self._stop_listening()

    def on_resize(self) -> None:
        """Small terminals have no room for a frame."""
        self.set_class(self.size.height < 18 or self.size.width < 60, "-small")

    # What the user does

    def action_start(self) -> None:
        """Converts what the form says, as soon as it is known that this can be done."""
        wish = self.query_one(ConvertForm).wish()
        if wish is None:
            self.app.bell()
        elif wish == self._ready:
            self._start(wish)
        else:
            self._eager = wish
            self._preview_now()

    def _start(self, wish: Wish) -> None:
        try:
            self._preparation.prepare(wish.destination)
            self._conversions.start(wish.source, wish.destination, wish.options)
        except FlashllmError as problem:
            self.query_one(ConvertForm).show_preview([clean(str(problem))], is_error=True)
            return
        self._shows_job = True
        self._show()

    def action_stop(self) -> None:
        """Stops the conversion."""
        if self._conversions.job is not None:
            self._conversions.job.cancel()

    def action_open(self) -> None:
        """Opens what was made."""
        if self._conversions.job is not None:
            self.dismiss(self._conversions.job.destination)

    def action_again(self) -> None:
        """Back to the form, for another conversion."""
        self._shows_job = False
        self._show()
        if self._conversions.job is not None:
            self.query_one(ConvertForm).offer_rounding(self._conversions.job.status.error)
        self.query_one(ConvertForm).query("Input").first().focus()
        self._preview_soon()

    def action_leave(self) -> None:
        """Closes an open list, or leaves; what is being converted goes on."""
        for field in self.query(Select).results(Select):
            if field.expanded:
                field.expanded = False
                field.focus()
                return
        self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Keys of what cannot be done now are not shown."""
        job = self._conversions.job
        state = job.status.state if self._shows_job and job is not None else JobState.WAITING
        is_made = state is JobState.DONE
        possible = {
            "start": not self._shows_job,
            "stop": state in (JobState.RUNNING, JobState.STOPPING),
            "open": is_made and job is not None and self._can_chat(job.destination),
            "again": self._shows_job and job is not None and job.status.is_over,
        }
        return possible.get(action, True)

    def _can_chat(self, made: Path) -> bool:
        """Whether a model that was made is for a chat; its files are looked at once."""
        if made not in self._is_for_chats:
            self._is_for_chats[made] = can_chat(made)
        return self._is_for_chats[made]

    # Looking, on threads

    def _hear(self, _job: ConvertJob) -> None:
        with contextlib.suppress(RuntimeError):  # the application has gone
            self.post_message(self.JobChanged())

    @thread_work("checkpoints")
    def _look_for_checkpoints(self) -> None:
        self.post_message(self.Offered(list(self._preparation.checkpoints())))

    @on(Offered)
    def _offer(self, event: Offered) -> None:
        self.query_one(ConvertForm).offer(event.checkpoints)

    @on(ConvertForm.SourceChanged)
    def _ask_destination(self, event: ConvertForm.SourceChanged) -> None:
        self._look_for_destination(event.source)

    @thread_work("destination")
    def _look_for_destination(self, source: Path) -> None:
        self.post_message(self.Proposed(source, self._preparation.destination(source)))

    @on(Proposed)
    def _propose(self, event: Proposed) -> None:
        self.query_one(ConvertForm).propose(event.source, event.destination)

    @on(ConvertForm.Changed)
    def _preview_soon(self) -> None:
        self._ready = self._eager = None
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(PREVIEW_SECONDS, self._preview_now)

    def _preview_now(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        wish = self.query_one(ConvertForm).wish()
        if wish is not None:
            self._look_ahead(wish)

    @thread_work("preview")
    def _look_ahead(self, wish: Wish) -> None:
        worker = get_current_worker()
        try:
            found = self._preparation.preview(wish.source, wish.destination, wish.options)
            lines, is_error = format_preview(found, wish.options), False
        except FlashllmError as problem:
            lines, is_error = [clean(str(problem))], True
        except OSError as problem:
            where = problem.filename or wish.source
            lines, is_error = [clean(f"{where}: {problem.strerror}")], True
        except Exception as problem:  # noqa: BLE001  told on the screen, which stays usable
            _LOG.exception("a conversion could not be looked at before")
            lines, is_error = [clean(f"unexpected: {type(problem).__name__}: {problem}")], True
        if not worker.is_cancelled:
            self.post_message(self.Previewed(wish, lines, is_error))

    @on(Previewed)
    def _show_preview(self, event: Previewed) -> None:
        self._ready = None if event.is_error else event.wish
        self.query_one(ConvertForm).show_preview(event.lines, event.is_error)
        if event.wish == self._eager:
            self._eager = None
            if not event.is_error:
                self._start(event.wish)

    # What is shown

    @on(JobChanged)
    def _show(self) -> None:
        job = self._conversions.job
        self.query_one(ConvertForm).display = not self._shows_job
        self.query_one("#job").display = self._shows_job
        for button in self.query(Button):
            button.display = self.check_action((button.action or "").partition(".")[2], ()) is True
        title = "Convert a checkpoint: what is made is complete, or absent"
        if self._shows_job and job is not None:
            status = job.status  # of one moment: it changes on a thread
            title = format_job(job, status)
            self._show_job(job, status)
        self.query_one("#convert-title", Static).update(Content(title))
        self.refresh_bindings()

    def _show_job(self, job: ConvertJob, status: JobStatus) -> None:
        where = clean(f"{job.source} -> {job.destination}")
        words = format_phase(status)
        if status.total_bytes and not status.is_over:
            words = f"{words}\n{format_amount(status)}"
        if status.state is JobState.DONE:
            words = "\n".join(["Complete.", *status.summary])
            if not self._can_chat(job.destination):
                words += f"\n{NOT_FOR_CHATS} {clean(str(job.destination))} --ids 1,2,3` runs it."
        elif status.is_over:
            words = status.error
        if status.is_over:
            self._conversions.seen = job
        self.query_one("#job-text", Static).update(Content(f"{where}\n{words}"))
        bar = self.query_one(ProgressBar)
        share = status.share if status.whole_share is None else status.whole_share
        bar.update(progress=STEPS if status.state is JobState.DONE else STEPS * share)
        more = [*(() if status.is_over else status.plan)]
        more += [f"warning: {text}" for text in status.warnings]
        if not status.is_over:
            more.append("Close leaves it running while the chat is open; its status line shows it.")
        self.query_one("#job-more", Static).update(Content("\n".join(more)))
