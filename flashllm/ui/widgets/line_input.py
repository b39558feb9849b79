"""A field for a line of text, which may come from a clipboard or the name of a file."""

from __future__ import annotations

from textual.widgets import Input

from flashllm.untrusted.terminal import sanitize

_SPACES = str.maketrans("\n\t", "  ")


class LineInput(Input):
    """Textual's, whose value holds nothing that a terminal would act on."""

    def validate_value(self, value: str) -> str:
        """The value as it is shown."""
        return sanitize(value).translate(_SPACES)
