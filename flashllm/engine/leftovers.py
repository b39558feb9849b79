"""What closed models have left in this process: stacks, gaps in the heap.

Pages of libraries are given back before the next one is opened. The rest was planned for by the
reserve of the model that was closed, and the next one finds it when it measures the process before
it is loaded. Counted twice, a second opening would need more than the first one did.
"""

from __future__ import annotations

import threading

from flashllm.planning.plan import Plan
from flashllm.system.memory import own_bytes

_lock = threading.Lock()
_open = 0
_left_bytes = 0
_before_bytes = 0
"""Memory of this process, without pages of files, before a model was loaded; no leftovers in it."""


def measured() -> None:
    """The process was measured, for a model that will be loaded."""
    global _before_bytes
    with _lock:
        if not _open:
            _before_bytes = own_bytes() - _left_bytes


def left_bytes() -> int:
    """Resident memory that the reserve of the next model already stands for."""
    return _left_bytes


def opened() -> None:
    """A model was opened."""
    global _open
    with _lock:
        _open += 1


def closed(plan: Plan) -> None:
    """A model was closed, and its memory given back."""
    global _open, _left_bytes
    with _lock:
        _open -= 1
        if not _open:  # else the rest is another model's
            _left_bytes = min(max(own_bytes() - _before_bytes, 0), plan.split["reserve"])
