"""Published models that can be pulled: what each needs here, by its shape alone.

Which models there are is data of the converter (`known_models.toml` there); every figure comes from
the planner, for this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.convert.families.known_shapes import KNOWN, KnownModel, describe_shape
from flashllm.library.conversion_options import NO_PREDICTORS, TRAIN, ConvertOptions
from flashllm.library.conversion_preview import Preview, preview_shape
from flashllm.library.scan import Conditions
from flashllm.options import Select
from flashllm.planning.shape_estimate import usual_selector

SPARSITY: dict[Select, str] = {
    "predicted": "predictors (lossy)",
    "gate": "gate (exact)",
    "router": "router (exact)",
    "all": "none: all of it",
}
"""What chooses the neurons that a token reads."""


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A known model as it would run here."""

    model: KnownModel
    select: Select
    """What chooses its neurons, once it is converted as it runs best."""
    preview: Preview

    @property
    def sparsity(self) -> str:
        """What makes it sparse, in words."""
        return SPARSITY[self.select]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        made = self.preview
        return {
            "name": self.model.name,
            "repository": self.model.repository or None,
            "family": self.model.family,
            "gated": self.model.gated,
            "select": self.select,
            "lossy": self.select == "predicted",
            "precision": made.encoding,
            "disk_bytes": made.disk_bytes,
            "smallest_ceiling_bytes": made.smallest_ceiling_bytes,
            "ceiling_bytes": made.ceiling_bytes,
            "tokens_per_second": made.tokens_per_second,
            "assumed": made.assumed,
            "config": self.model.config,
        }


def known_rows(
    place: Path, conditions: Conditions, *, dtype: str | None = None, everything: bool = False
) -> Iterator[KnownRow]:
    """The models that run well here, or all known ones, as they would run from `place`.

    `dtype` is the encoding of their weights: that of the uploads by default.
    """
    for name, model in KNOWN.items():
        if not everything and not model.listed:
            continue
        spec = describe_shape(name, dtype=dtype)
        select = usual_selector(spec)
        options = ConvertOptions(dtype, TRAIN if select == "predicted" else NO_PREDICTORS)
        yield KnownRow(model, select, preview_shape(spec, place, options, conditions))
