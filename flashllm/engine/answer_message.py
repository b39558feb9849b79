"""An answer as a message of a conversation; standard library only."""

from __future__ import annotations

from collections.abc import Sequence


class AnswerMessage(dict[str, str]):
    """`{"role": "assistant", "content": ...}`, which remembers the ids it was generated with.

    With them the next prompt begins exactly like the context, whose part need not be read again. As
    JSON it is a plain message.
    """

    def __init__(self, content: str, ids: Sequence[int] = ()) -> None:
        super().__init__(role="assistant", content=content)
        self.ids = tuple(ids)
