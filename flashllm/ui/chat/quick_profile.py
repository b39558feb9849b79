"""The quick profile beside the chat: taken at the first use of a model, or when it is asked for.

The process that measures waits by itself while a model answers. What it finds goes to the panels;
where nobody asked for it, a failure only goes to the log.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import FlashllmError
from flashllm.ui.chat import messages
from flashllm.units import format_rate

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine
    from flashllm.library.quick_profile_job import QuickProfileJob, QuickProfileStatus
    from flashllm.telemetry.device_rates import DeviceRates
    from flashllm.ui.widgets.owner import Owner

START_SECONDS = 1.0
"""After a model was opened: what is drawn then, and a question that waited, come first."""
GROWING_PARTS = ("application", "kv", "prefill", "slots", "reserve")
"""Parts of a plan that are taken as they are used: this memory is not free to measure in."""
_LOG = logging.getLogger("flashllm")


class QuickProfile:
    """At most one process that measures; `owner` gets its `Measuring` and `RatesRenewed`."""

    def __init__(self, owner: Owner, enabled: bool) -> None:
        """`enabled`: whether it is taken without being asked for."""
        self._owner = owner
        self._enabled = enabled
        self._engine: Engine | None = None
        self._job: QuickProfileJob | None = None
        self._is_asked = False
        self._tried: set[str] = set()
        """Directories of models whose disks were measured, or could not be."""

    @property
    def is_running(self) -> bool:
        """Whether something is being measured."""
        return self._job is not None and not self._job.status.is_over

    def follow_opened(self, engine: Engine) -> None:
        """A model is open: its disk is measured unless somebody did that before."""
        self._engine = engine
        is_new = engine.info.directory not in self._tried
        if self._enabled and is_new and engine.wants_quick_profile:
            self._owner.set_timer(START_SECONDS, self._start_unasked)

    def follow_closed(self) -> None:
        """No model is open."""
        self._engine = None

    def ask(self) -> str:
        """Takes one now; the result is what to say of it."""
        engine = self._engine
        if engine is None:
            return "there is no model whose disk could be measured"
        if self.is_running:
            self._is_asked = True
            return "the disk is being measured"
        rates = engine.rates()
        if rates.flash_bytes_per_second is not None and not rates.is_quick:
            return f"already known better, by {rates.origin}"
        self._start(engine, asked=True)
        return "measuring the disk, for some seconds"

    def take_status(self, status: QuickProfileStatus) -> str:
        """What to say of a job that has come so far; "" where nothing is."""
        if not status.is_over:
            return ""
        if status.error:
            _LOG.warning("no quick profile: %s", status.error)
            return f"the disk was not measured: {status.error}" if self._is_asked else ""
        if self._engine is not None and self._job is not None:
            threading.Thread(
                target=self._renew, args=(self._engine,), name="renew-rates", daemon=True
            ).start()
        return ""

    def close(self) -> None:
        """Ends what is being measured, before the application ends."""
        if self._job is not None:
            self._job.close()

    def _start_unasked(self) -> None:
        if self._engine is not None and not self.is_running:
            self._start(self._engine, asked=False)

    def _start(self, engine: Engine, asked: bool) -> None:
        from flashllm.library.quick_profile_job import QuickProfileJob

        self._is_asked = asked
        self._tried.add(engine.info.directory)
        self._job = QuickProfileJob(
            Path(engine.info.directory),
            lambda status: self._post(messages.Measuring(status)),
            sum(engine.plan.split.get(part, 0) for part in GROWING_PARTS),
        )
        self._job.start()

    def _renew(self, engine: Engine) -> None:
        try:
            rates = engine.renew_rates()
        except (FlashllmError, OSError):  # the engine is gone: its next one reads the profile
            return
        self._post(messages.RatesRenewed(engine, rates))

    def _post(self, message: messages.Measuring | messages.RatesRenewed) -> None:
        try:
            self._owner.post_message(message)
        except RuntimeError:  # the application has gone
            _LOG.info("a quick profile outlived the chat")


def format_measuring(status: QuickProfileStatus) -> str:
    """For the status line: `measuring the disk: 40 %`; "" once it is over."""
    if status.is_over:
        return ""
    return f"{status.phase or 'measuring'}: {100 * status.share:.0f} %"


def format_measured(rates: DeviceRates) -> str:
    """`a quick profile of vda: 2.91 GB/s from flash, 22.5 GB/s from memory`."""
    found = []
    if rates.flash_bytes_per_second:
        found.append(f"{format_rate(rates.flash_bytes_per_second)} from flash")
    if rates.dram_bytes_per_second:
        found.append(f"{format_rate(rates.dram_bytes_per_second)} from memory")
    return (
        f"measured: {', '.join(found)} ({rates.profile_name})" if found else "nothing was measured"
    )
