"""An answer for asyncio: the model's own thread computes, the event loop waits.

No token is computed before it is asked for, so a slow reader holds the engine back. Cancelling
whoever waits for a token ends the answer within a layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor, Future
from typing import Any

from flashllm.engine.answer_message import AnswerMessage
from flashllm.engine.generation import Generation, Token, Usage


class AsyncGeneration:
    """Asynchronous iterator of tokens; afterwards `finish_reason` and `text` tell how it went.

    The same as `Generation` otherwise.
    """

    def __init__(self, generation: Generation, executor: Executor) -> None:
        """`executor` has one thread, and computes for all answers of a model."""
        self._generation = generation
        self._executor = executor

    @property
    def finish_reason(self) -> str | None:
        """As of `Generation`: None while it runs, and after an error."""
        return self._generation.finish_reason

    @property
    def text(self) -> str:
        """The text so far."""
        return self._generation.text

    @property
    def ids(self) -> list[int]:
        """The ids so far."""
        return self._generation.ids

    @property
    def usage(self) -> Usage:
        """Tokens that it took so far."""
        return self._generation.usage

    @property
    def message(self) -> AnswerMessage:
        """The answer as a message, to be appended to those that `Model.achat` got."""
        return self._generation.message

    @property
    def dropped_messages(self) -> int:
        """How many of a conversation's oldest messages were left out, since they did not fit."""
        return self._generation.dropped_messages

    def report(self) -> dict[str, Any]:
        """Everything about this generation, as `flashllm run --json` prints it."""
        return self._generation.report()

    def __aiter__(self) -> AsyncIterator[Token]:
        return self

    async def __anext__(self) -> Token:
        token = await self._next()
        if token is None:
            raise StopAsyncIteration
        return token

    async def complete(self) -> AsyncGeneration:
        """Generates the rest; returns itself."""
        async for _ in self:
            pass
        return self

    async def aclose(self) -> None:
        """Stop within a layer and free the context; the iteration ends."""
        self._generation.close()

    def __del__(self) -> None:
        # The thread that computed the last token may refer to the answer for another moment.
        self._generation.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._generation).removeprefix('<')}"

    async def _next(self) -> Token | None:
        generation = self._generation
        try:
            future: Future[Token | None] = self._executor.submit(next, generation, None)
        except RuntimeError:  # the model was closed, and its thread has gone: this says so
            return next(generation, None)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            generation.close()
            # The step ends within a layer. Whoever waits for the cancelled task may rely on it.
            await asyncio.gather(asyncio.wrap_future(future), return_exceptions=True)
            raise
