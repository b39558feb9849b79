"""Work of a widget on a thread, which keeps nothing of the widget when it is done.

Textual notes in the thread which worker it runs, and the threads are kept for later work: each of
up to half a dozen of them would hold the last page that it looked something up for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from textual import work
from textual.dom import DOMNode
from textual.worker import Worker, active_worker

_Node = TypeVar("_Node", bound=DOMNode)
_Arguments = ParamSpec("_Arguments")
_Work = Callable[Concatenate[_Node, _Arguments], None]


def thread_work(
    group: str,
) -> Callable[[_Work[_Node, _Arguments]], Callable[Concatenate[_Node, _Arguments], Worker[None]]]:
    """Has a method run on a thread; what of its `group` was begun before is cancelled."""

    def on_thread(
        method: _Work[_Node, _Arguments],
    ) -> Callable[Concatenate[_Node, _Arguments], Worker[None]]:
        @functools.wraps(method)
        def run(node: _Node, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
            try:
                method(node, *arguments, **named)
            finally:
                nobody: Any = None
                active_worker.set(nobody)

        return work(thread=True, exclusive=True, group=group, exit_on_error=False)(run)

    return on_thread
