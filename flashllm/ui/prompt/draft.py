"""What is written for a message: its text, and what stands behind a few words in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Draft:
    """A text as it stands in the prompt; `held_back` has what some of its words stand for."""

    shown: str
    held_back: Mapping[str, str] = field(default_factory=dict)
    edited: int | None = None
    """The question of which this is another version."""

    @property
    def text(self) -> str:
        """The whole text, as it is sent."""
        if not self.held_back:
            return self.shown
        # In one pass: what is held back may hold such words itself.
        words = "|".join(map(re.escape, self.held_back))
        return re.sub(words, lambda found: self.held_back[found[0]], self.shown)
