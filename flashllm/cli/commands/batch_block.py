"""`flashllm batch --block auto`: how many rows at once, as trials say."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.batch.block_search import Trial, find_block
from flashllm.cli.commands import batch_policy
from flashllm.cli.shared import open_model
from flashllm.cli.shared.interrupt import RunningModel
from flashllm.cli.shared.output import remark
from flashllm.errors import CannotCreate, MemoryCeilingTooSmall, NotEnoughSpace
from flashllm.units import MIB, format_number

if TYPE_CHECKING:
    from flashllm.engine.local import Model
    from flashllm.options import ModelOptions


class BlockTrials:
    """Opens the model for some rows after others, and says what was seen.

    Rows whose keys and values have no room under the ceiling are tried with some of them on flash,
    unless `--kv-memory` says how many.
    """

    def __init__(
        self, arguments: argparse.Namespace, directory: Path, running: RunningModel
    ) -> None:
        self._arguments, self._directory, self._running = arguments, directory, running
        self._asked = open_model.options_of(arguments)
        self._paged: dict[int, ModelOptions] = {}
        """Options for so many rows, where they are not those of the command."""

    def best(self, prompts: Sequence[Sequence[int]], most: int) -> tuple[int, ModelOptions]:
        """The fastest number of rows, at most `most`, and the options for it.

        Errors: those of opening the model for one row.
        """
        running = self._running
        rows = find_block(self._opened, prompts, most, lambda: running.is_stopped, self._tell)
        return rows, self._options(rows)

    def _options(self, rows: int) -> ModelOptions:
        return self._paged.get(rows, self._asked)

    @contextlib.contextmanager
    def _opened(self, rows: int) -> Iterator[Model]:
        with self._open(rows) as model:
            self._running.model = model
            try:
                yield model
            finally:
                self._running.model = None

    def _open(self, rows: int) -> Model:
        try:
            return open_model.open_engine(self._directory, self._arguments, rows)
        except MemoryCeilingTooSmall as problem:
            options = self._on_flash(rows)
            if options is None:
                raise
            try:
                model = open_model.open_engine(self._directory, self._arguments, rows, options)
            except (MemoryCeilingTooSmall, NotEnoughSpace, CannotCreate):
                raise problem from None
            self._paged[rows] = options
            return model

    def _on_flash(self, rows: int) -> ModelOptions | None:
        """Options for so many rows with a part of keys and values on flash, if that fits."""
        from flashllm.planning.plan import fitting_kv_memory

        if self._asked.kv_selection.lossy or self._asked.device is not None:
            return None
        one = batch_policy.scenario_of(self._arguments, self._directory).having(contexts=rows)
        kv_memory = fitting_kv_memory(one.spec, one.sizes, one.options, one.profile)
        return None if kv_memory is None else self._asked.having(kv_memory=kv_memory)

    def _tell(self, trial: Trial) -> None:
        speed = f"{format_number(trial.tokens_per_second)} tokens a second"
        kv_memory = self._paged[trial.rows].kv_memory if trial.rows in self._paged else None
        flag = "" if kv_memory is None else f" --kv-memory {kv_memory // MIB}MiB"
        remark(f"--block {trial.rows}{flag}: {trial.problem or speed}")
