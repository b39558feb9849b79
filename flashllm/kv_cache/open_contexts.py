"""The contexts of one model that are in use: as many as its plan has memory for."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from flashllm.errors import ModelClosed, UsageError
from flashllm.kv_cache.context import Context


class OpenContexts:
    """Contexts until they are closed or dropped; calls may come from any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_closed = False

    def __contains__(self, context: object) -> bool:
        return context in self._contexts

    def add(self, make: Callable[[], Context]) -> Context:
        """A new one; `UsageError` where there are as many as may be, `ModelClosed` after `end`."""
        with self._lock:
            if self._is_closed:
                raise ModelClosed("the model was closed; open it again")
            if len(self.all()) >= self._most:
                raise UsageError(
                    f"this model was opened with contexts={self._most}, and as many are in use;"
                    " drop or close one, or open it with more"
                )
            context = make()
            self._contexts.add(context)
        return context

    def all(self) -> list[Context]:
        """Those that nobody has closed."""
        return [context for context in self._contexts if not context.is_closed]

    def end(self) -> bool:
        """No more are made; whether this is the first call."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        return is_first
