"""For widgets that grow with an answer: one layout of the screen for each growth, not two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from textual.geometry import Region, Size
    from textual.widget import Widget as _Widget
else:
    _Widget = object  # styles follow the first base that is a widget, so this must not be one


class SingleLayout(_Widget):
    """A widget for which the screen is not laid out again because of the size that it has got.

    Textual does that as scroll bars may appear then; where they do, that asks for a layout itself.
    """

    def _size_updated(
        self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True
    ) -> bool:
        del layout
        return super()._size_updated(size, virtual_size, container_size, layout=False)

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Textual's, after which the widget is measured anew."""
        if layout:
            # It keeps a size that a layout found between two changes, where the first had not been
            # noticed yet, and would not look again after the second.
            self._box_model_cache.clear()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
