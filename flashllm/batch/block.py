"""Rows in a block: several answers are written at once, and each layer is read once for all.

The zig-zag block schedule of FlexGen (arXiv 2303.06865, section 4.1) with one change: a row that is
finished gives its place to the next one, so that the block stays full until rows run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from flashllm.batch.answer_lines import RowAnswer
from flashllm.batch.costs import BatchCosts
from flashllm.batch.encoded_row import EncodedRow, failure_of
from flashllm.batch.row_by_row import Finished, answer_of
from flashllm.errors import FlashllmError

if TYPE_CHECKING:
    from flashllm.engine.generation import Generation
    from flashllm.engine.local import Model
    from flashllm.kv_cache.context import Context


class RowsInBlock:
    """As many rows at once as the model has contexts.

    Prompts are read one after the other, each when its row comes into the block.
    """

    def __init__(
        self, model: Model, is_stopped: Callable[[], bool], on_token: Callable[[], None]
    ) -> None:
        """`on_token` is called after each token of an answer."""
        self.costs = BatchCosts()
        self._model = model
        self._is_stopped = is_stopped
        self._on_token = on_token
        others = [model.new_context() for _ in range(model.plan.contexts - 1)]
        self._free: list[Context | None] = [*others, None]
        """The next one is the last; None is the model's own."""
        self._going: list[tuple[EncodedRow, Context | None, Generation]] = []

    def answers(self, rows: Iterable[EncodedRow]) -> Iterator[Finished]:
        """As `Schedule` has it."""
        waiting = iter(rows)
        while not self._is_stopped():
            yield from self._fill(waiting)
            if not self._going:
                return
            yield from self._finished()
            if self._going and not self._is_stopped():
                first, *others = [generation for _, _, generation in self._going]
                for token in first.next_of_each(others):
                    if token is not None:
                        self._on_token()
            yield from self._finished()

    def _fill(self, waiting: Iterator[EncodedRow]) -> Iterator[Finished]:
        """Begins rows while there are contexts: reads their prompts, up to their first tokens."""
        while self._free and not self._is_stopped():
            encoded = next(waiting, None)
            if encoded is None:
                return
            try:
                self._begin(encoded)
            except FlashllmError as error:
                yield Finished(encoded.number, failure_of(encoded.row, error))

    def _begin(self, encoded: EncodedRow) -> None:
        row, prompt = encoded.row, encoded.prompt
        context = self._free[-1]
        generation = self._model.generate(
            prompt.ids,
            max_tokens=row.max_tokens,
            sampling=row.sampling,
            stop=prompt.stop,
            context=context,
            answer=len(prompt.begun),
        )
        if next(generation, None) is not None:
            self._on_token()
        self._free.pop()
        self._going.append((encoded, context, generation))

    def _finished(self) -> Iterator[Finished]:
        """Those that have come to their end leave the block; a cancelled one tells nothing."""
        going = self._going
        self._going = [one for one in going if one[2].pending is not None]
        for encoded, context, generation in going:
            if generation.pending is not None:
                continue
            self._free.append(context)
            answer: RowAnswer | None = answer_of(encoded.row, generation, self._model)
            if answer is not None:
                self.costs.add(generation.report())
                yield Finished(encoded.number, answer)
