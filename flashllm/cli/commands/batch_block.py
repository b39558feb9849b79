"""`flashllm batch --block auto`: how many rows at once, as trials say."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from flashllm.batch.block_search import Trial, find_block
from flashllm.cli.commands import batch_policy
from flashllm.cli.shared import open_model
from flashllm.cli.shared.interrupt import RunningModel
from flashllm.cli.shared.output import remark
from flashllm.errors import CannotCreate, MemoryCeilingTooSmall, NotEnoughSpace
from flashllm.planning.batch.policy import Workload
from flashllm.planning.batch.rows_placement import placed_rows
from flashllm.units import MIB, format_number

if TYPE_CHECKING:
    from flashllm.engine.local import Model
    from flashllm.options import ModelOptions


class BlockTrials:
    """Opens the model for some rows after others, and says what was seen.

    Each number of rows is placed so that it reads the least: rows whose keys and values have no
    room under the ceiling are tried with some of them on flash, unless `--kv-memory` says how many.
    """

    def __init__(
        self, arguments: argparse.Namespace, directory: Path, running: RunningModel
    ) -> None:
        self._arguments, self._directory, self._running = arguments, directory, running
        self._asked = open_model.options_of(arguments)
        self._placed: dict[int, ModelOptions] = {}
        """Options for so many rows."""

    def best(self, prompts: Sequence[Sequence[int]], most: int) -> tuple[int, ModelOptions]:
        """The fastest number of rows, at most `most`, and the options for it.

        Errors: those of opening the model for one row.
        """
        prompt_tokens = max(round(fmean(map(len, prompts))), 1)
        work = Workload(prompt_tokens, self._arguments.max_tokens)
        scenario = batch_policy.scenario_of(self._arguments, self._directory)

        @contextlib.contextmanager
        def opened(rows: int, on_flash: bool) -> Iterator[Model]:
            placed = None if rows == 1 else placed_rows(scenario, rows, work, on_flash=on_flash)
            if placed is not None:
                # Not the ceiling it was planned for, which was measured where none was asked for.
                self._placed[rows] = self._asked.having(
                    kv_memory=placed.kv_memory, chunk_tokens=placed.chunk_tokens
                )
            with self._open(rows) as model:
                self._running.model = model
                try:
                    yield model
                finally:
                    self._running.model = None

        running = self._running
        rows = find_block(
            opened, prompts, work.new_tokens, most, lambda: running.is_stopped, self._tell
        )
        return rows, self._options(rows)

    def _options(self, rows: int) -> ModelOptions:
        return self._placed.get(rows, self._asked)

    def _open(self, rows: int) -> Model:
        try:
            return open_model.open_engine(
                self._directory, self._arguments, rows, self._options(rows)
            )
        except (MemoryCeilingTooSmall, NotEnoughSpace, CannotCreate):
            # The disk has no room for keys and values, or the process has grown.
            if self._placed.pop(rows, None) is None:
                raise
            return open_model.open_engine(self._directory, self._arguments, rows)

    def _tell(self, trial: Trial) -> None:
        speed = f"{format_number(trial.tokens_per_second)} tokens a second"
        kv_memory, flag = self._options(trial.rows).kv_memory, ""
        if kv_memory is not None and self._asked.kv_memory is None:
            flag = f" --kv-memory {kv_memory // MIB}MiB"
        remark(f"--block {trial.rows}{flag}: {trial.problem or speed}")
