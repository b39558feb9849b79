"""What a source would become, from its configuration and the headers of its files."""

from __future__ import annotations

from pathlib import Path

from flashllm.spec import ModelSpec

from ..source.checkpoint import gguf_of
from .encodings import choose_encodings
from .families import family_of
from .matching import assign
from .opening import open_source, source_config
from .spec_from_config import Overrides, check_source, describe_config, spec_of


def describe(
    source: Path,
    *,
    act: str | None = None,
    fatrelu_threshold: float | None = None,
    dtype: str | None = None,
    resident_dtype: str | None = None,
    requantise: bool = False,
) -> ModelSpec:
    """The spec that a source would get; errors as those of `convert`.

    No weight is read. Of a directory with a `config.json` only that is looked at: the encoding is
    the one that it names, f16 where it names none, unless `dtype` says another. Of a model in GGUF
    it is the one that `convert` would choose.
    """
    source = Path(source)
    check_source(source)
    config = source_config(source)
    if gguf_of(source) is None:
        return describe_config(
            config,
            act=act,
            fatrelu_threshold=fatrelu_threshold,
            dtype=dtype,
            resident_dtype=resident_dtype,
        )
    overrides = Overrides(
        dtype, act, fatrelu_threshold, resident_dtype, requantise=requantise or None
    )
    family = family_of(config)
    spec = spec_of(config, family, overrides)
    with open_source(source) as checkpoint:
        assignment = assign(family, spec, checkpoint)
    return choose_encodings(assignment, spec, overrides, config.path, mixed=True).spec
