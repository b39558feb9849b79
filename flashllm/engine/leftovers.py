"""What closed models have left in this process: pages of libraries, stacks, gaps in the heap.

They were planned for by the reserve of the model that was closed, and the next one finds them when
it measures the process before it is loaded. Counted twice, a second opening would need more than
the first one did.
"""

from __future__ import annotations

import threading

from flashllm.planning.plan import Plan
from flashllm.system.memory import rss_bytes

_lock = threading.Lock()
_open = 0
_left_bytes = 0


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
            grown = rss_bytes() - plan.split["interpreter"]
            _left_bytes = min(max(grown, 0), plan.split["reserve"])
