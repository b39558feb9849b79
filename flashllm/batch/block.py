"""Rows in a block: several answers are written at once, and each layer is read once for all.

A block schedule as FlexGen's (arXiv 2303.06865, section 4.1). When rows come into the block is the
admission's to say: usually when others finish, so that it stays full until rows run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from flashllm.batch.admission import Admission, Continuous
from flashllm.batch.answer_lines import RowAnswer
from flashllm.batch.costs import BatchCosts
from flashllm.batch.encoded_row import EncodedRow, failure_of
from flashllm.batch.row_by_row import Finished, answer_of
from flashllm.errors import FlashllmError

if TYPE_CHECKING:
    from flashllm.engine.generation import Generation
    from flashllm.engine.local import Model
    from flashllm.kv_cache.context import Context


_Going: TypeAlias = "tuple[EncodedRow, Context | None, Generation]"


def waits_for_places(model: Model) -> bool:
    """Whether prompts of new rows are readings of layers that a block's steps do without."""
    plan = model.plan
    return not model.decoder.answers_go_beside or plan.contexts <= plan.union_tokens


class RowsInBlock:
    """As many rows at once as the model has contexts.

    The prompts of rows that come into the block at the same time are read together, and beside them
    the other rows go on: their tokens then need no reading of weights, nor wait for it.
    """

    def __init__(
        self,
        model: Model,
        is_stopped: Callable[[], bool],
        on_token: Callable[[], None],
        admission: Admission | None = None,
    ) -> None:
        """`on_token` is called after each token of an answer."""
        self.costs = BatchCosts()
        self._model = model
        self._is_stopped = is_stopped
        self._on_token = on_token
        others = [model.new_context() for _ in range(model.plan.contexts - 1)]
        self._admission = admission or Continuous(
            model.plan.contexts, waits=waits_for_places(model)
        )
        self._goes_beside = self._admission.goes_beside and model.decoder.answers_go_beside
        self._free: list[Context | None] = [*others, None]
        """The next one is the last; None is the model's own."""
        self._going: list[_Going] = []

    def answers(self, rows: Iterable[EncodedRow]) -> Iterator[Finished]:
        """As `Schedule` has it."""
        waiting = iter(rows)
        while not self._is_stopped():
            before = len(self._going)
            begins = self._admission.rows(len(self._free), before)
            yield from self._fill(waiting, begins)
            # Where prompts were read, those that were going have got their next tokens beside them.
            went = self._goes_beside and 0 < before < len(self._going)
            if not self._going:
                return
            self._note_tokens()
            yield from self._finished()
            if self._going and not went and not self._is_stopped():
                first, *others = [generation for _, _, generation in self._going]
                self._tell(first.next_of_each(others))
                self._note_tokens()
            yield from self._finished()

    def _note_tokens(self) -> None:
        tokens = sum(generation.context.length for _, _, generation in self._going)
        self.costs.kv_tokens_peak = max(self.costs.kv_tokens_peak, tokens)

    def _fill(self, waiting: Iterator[EncodedRow], begins: int) -> Iterator[Finished]:
        """Begins so many rows: reads their prompts, up to their first tokens."""
        while begins > 0 and not self._is_stopped():
            taken: list[_Going] = []
            while len(taken) < begins and (encoded := next(waiting, None)) is not None:
                try:
                    generation = self._generate(encoded, self._free[-1])
                except FlashllmError as error:
                    yield Finished(encoded.number, failure_of(encoded.row, error))
                else:
                    taken.append((encoded, self._free.pop(), generation))
            if not taken:
                return
            before = len(self._going)
            yield from self._begin(taken)
            begins -= len(self._going) - before

    def _begin(self, taken: list[_Going]) -> Iterator[Finished]:
        """Reads the prompts of rows together; where that fails, of each by itself."""
        first, *others = [generation for _, _, generation in taken]
        going = [generation for _, _, generation in self._going]
        try:
            tokens = first.first_of_each(others, going if self._goes_beside else None)
        except FlashllmError:
            if any(one.pending is None and one.finish_reason is None for one in going):
                raise  # it was theirs
            tokens = []  # of which row is found out below
        self._tell(tokens)
        if tokens:
            self._going += taken
            return
        for encoded, context, _ in taken:
            try:
                generation = self._generate(encoded, context)
                self._tell([next(generation, None)])
            except FlashllmError as error:
                self._free.append(context)
                yield Finished(encoded.number, failure_of(encoded.row, error))
            else:
                self._going.append((encoded, context, generation))

    def _tell(self, tokens: Iterable[object]) -> None:
        for token in tokens:
            if token is not None:
                self._on_token()

    def _generate(self, encoded: EncodedRow, context: Context | None) -> Generation:
        return self._model.generate(encoded.prompt.ids, context=context, **encoded.options())

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
