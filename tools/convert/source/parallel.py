"""Runs pieces of work in several threads, and yields their results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
THREADS_MAX = 4
"""More would wait for the disk, with a result each in memory."""


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Generator[_Result]:
    """`work` of each item, as `map` gives it, by up to THREADS_MAX threads.

    One result more than there are threads is held at most. An error comes where its result would
    have; whatever ends the iteration, no thread is left after it.
    """
    threads = min(os.cpu_count() or 1, THREADS_MAX)
    under_way: deque[Future[_Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="converting")
    try:
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
