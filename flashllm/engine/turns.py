"""Who computes: one answer at a time in each context, one step at a time in the whole model.

Answers in several contexts may be asked for from several threads: their steps, a prompt or a token
each, follow one another. What is over or forgotten frees its context by itself.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from flashllm.errors import Cancelled, EngineBusy, ModelClosed, UsageError
from flashllm.system.allocation import out_of_memory
from flashllm.system.malloc import give_back_free_memory

if TYPE_CHECKING:
    from flashllm.kv_cache.context import Context
    from flashllm.model.decoder import Decoder

_Result = TypeVar("_Result")


class Claim:
    """The right to compute in one context, until it is released or nobody refers to it."""

    __slots__ = ("__weakref__", "_turns", "context", "held", "is_cancelled", "is_released")

    def __init__(self, turns: Turns, context: Context) -> None:
        self.context = context
        self.held = contextlib.ExitStack()
        """What is given back with the context."""
        self.is_cancelled = False
        self.is_released = False
        self._turns = turns

    def compute(self, step: Callable[[], _Result]) -> _Result:
        """Calls `step` once nobody else computes; waits for a step of another context.

        After an error the claim is released. Errors: `Cancelled` after `cancel`, `ModelClosed`;
        `OutOfMemory`, after which another step may follow; `EngineBusy`, which changes nothing, if
        called from within a step, as `on_prefill` is.
        """
        turns = self._turns
        with turns.computing:
            if turns.current is not None:  # the lock is reentrant, so it is a step of this thread
                raise EngineBusy(
                    "another answer is being computed, and called this function (on_prefill?);"
                    " ask for tokens when it has returned"
                )
            try:
                turns.current = self
                # Looked at after `current` is set: a cancel either is seen here or sees `current`.
                if turns.is_closed:
                    raise turns.closed_error()
                check_context(self.context)
                if self.is_cancelled:
                    raise Cancelled("stopped on request")
                return step()
            except BaseException as error:
                self.release()
                turns.settle()
                if isinstance(error, Cancelled) and turns.is_closed:
                    raise turns.closed_error() from None
                refused = out_of_memory(error, "computing")
                if refused is None:
                    raise
            finally:
                turns.current = None
                if self.is_cancelled:
                    turns.end_cancel()
            # Outside of the handler: the error that is raised holds none of the step's memory.
            give_back_free_memory()
            raise refused

    def cancel(self) -> None:
        """Makes the running step, or the next one, end with `Cancelled`. From any thread."""
        self._turns.cancel(self)

    def release(self) -> None:
        """Frees the context, and what was held with it."""
        self.is_released = True
        self.held.close()


def check_context(context: Context) -> None:
    """`UsageError` for one that was closed."""
    if context.is_closed:
        raise UsageError("this context was closed; model.new_context() makes another one")


class Turns:
    """The claims of one model. All methods may be called from any thread."""

    def __init__(self, decoder: Decoder, name: str) -> None:
        """`name` of the model, for errors."""
        self.computing = threading.RLock()
        """Held while a step computes."""
        self.current: Claim | None = None
        """Whose step computes."""
        self.is_closed = False
        self._decoder = decoder
        self._name = name
        # Held for moments only; reentrant, since a signal's handler may cancel.
        self._guard = threading.RLock()
        # By weak references: a claim that nobody refers to is over.
        self._claims: weakref.WeakKeyDictionary[Context, weakref.ref[Claim]]
        self._claims = weakref.WeakKeyDictionary()

    def claim(self, context: Context) -> Claim:
        """Claims a context; `EngineBusy` while another claim of it holds."""
        claim = Claim(self, context)
        with self._guard:
            self.check_open()
            check_context(context)
            if self._holder(context) is not None:
                raise EngineBusy(
                    "this context is writing another answer: take that to its end or close() it,"
                    " or use a context of its own (open_model(contexts=2), model.new_context(),"
                    " generate(..., context=...))"
                )
            self._claims[context] = weakref.ref(claim)
        return claim

    def check_open(self) -> None:
        """`ModelClosed` after `close`."""
        if self.is_closed:
            raise self.closed_error()

    def closed_error(self) -> ModelClosed:
        """The error of a closed model."""
        return ModelClosed(
            f"the model {self._name!r} was closed; open it again with flashllm.open_model"
        )

    def cancel(self, claim: Claim) -> None:
        """Makes the step of a claim, if it computes, and all that follow, end with `Cancelled`."""
        with self._guard:
            claim.is_cancelled = True
            if self.current is claim and not self.is_closed:
                self._decoder.cancel()

    def cancel_all(self) -> None:
        """The same for everything that is claimed."""
        with self._guard:
            for context in list(self._claims):
                holder = self._holder(context)
                if holder is not None:
                    self.cancel(holder)

    def between_steps(self, work: Callable[[], object], seconds: float = 0.0) -> bool:
        """Calls `work` where no step computes and the model is open; whether it did.

        Waits up to `seconds` for a step to end.
        """
        if not self.computing.acquire(timeout=seconds):
            return False
        try:
            is_free = self.current is None and not self.is_closed
            if is_free:
                work()
            return is_free
        finally:
            self.computing.release()

    def settle(self) -> None:
        """A step has failed or was cancelled: waits for its reads, so that others may follow."""
        if not self.is_closed:
            self._decoder.settle()

    def end_cancel(self) -> None:
        """The step that was cancelled is over."""
        with self._guard:
            self._decoder.clear_cancel()

    def close(self, release: Callable[[], None]) -> None:
        """Ends the running step within a layer, then calls `release`; every later step raises."""
        with self._guard:
            if self.is_closed:
                return
            if self.current is not None and self.computing_here():
                raise EngineBusy(
                    f"the model {self._name!r} cannot be closed from within its own step"
                    " (on_prefill?); cancel() it, and close it afterwards"
                )
            self.is_closed = True
            if self.current is not None:
                self._decoder.cancel()
        with self.computing:
            release()

    def computing_here(self) -> bool:
        """Whether this thread is within a step."""
        if not self.computing.acquire(blocking=False):
            return False
        try:
            return self.current is not None
        finally:
            self.computing.release()

    def _holder(self, context: Context) -> Claim | None:
        """The claim that holds for a context; a cancelled one does no longer."""
        reference = self._claims.get(context)
        claim = None if reference is None else reference()
        over = claim is None or claim.is_released or claim.is_cancelled
        return None if over else claim
