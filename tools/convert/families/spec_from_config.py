"""The spec of a model, from its configuration and the user's overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from flashllm.dtypes import DTYPES, PREDICTOR_DTYPES, DType
from flashllm.errors import LayoutError, ModelNotFound, NotACheckpoint, UnsupportedModel, UsageError
from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.spec import SPARSE_ACTIVATIONS, ModelSpec

from ..source.gguf_files import find_gguf
from .activation import activation_of
from .config import CONFIG_FILE, Config, quantisation_of, special_ids
from .families import family_of
from .family import Family

_SAYS_RELU = re.compile("relu", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Overrides:
    """The user's overrides; None leaves a value to the checkpoint."""

    dtype: str | None = None
    act: str | None = None
    fatrelu_threshold: float | None = None
    resident_dtype: str | None = None
    predictor_dtype: str | None = None
    requantise: bool | None = None
    """True to round weights again that were rounded before."""

    def __post_init__(self) -> None:
        _check_encoding("dtype", self.dtype, DTYPES)
        _check_encoding("resident_dtype", self.resident_dtype, DTYPES)
        _check_encoding("predictor_dtype", self.predictor_dtype, PREDICTOR_DTYPES)

    def encoded(self, spec: ModelSpec, dtype: str, resident: str | None = None) -> ModelSpec:
        """The spec with its encodings: `dtype` of the bundles, and of all where none was said.

        `resident` is that of the resident matrices where the user said none.
        """
        wanted = self.resident_dtype or resident
        apart = wanted if wanted != dtype else None
        return replace(spec, dtype=cast("DType", dtype), resident_dtype=cast("DType", apart))

    def to_json(self) -> dict[str, Any]:
        """The overrides, for the manifest."""
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _check_encoding(name: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise UsageError(f"{name} is {value!r}; expected one of {', '.join(known)}")


def describe_config(
    config: Config,
    *,
    act: str | None = None,
    fatrelu_threshold: float | None = None,
    dtype: str | None = None,
    resident_dtype: str | None = None,
) -> ModelSpec:
    """The spec that a checkpoint with this configuration would get; errors as those of `convert`.

    The encoding is the one that the configuration names, f16 where it names none, unless `dtype`
    says another.
    """
    overrides = Overrides(dtype, act, fatrelu_threshold, resident_dtype)
    named, quantised = _dtype_named(config), quantisation_of(config)
    spec = spec_of(config, family_of(config), overrides)
    return overrides.encoded(spec, dtype or quantised or named, None if dtype else named)


def check_source(source: Path) -> None:
    """Refuses a source that its names alone show to be unsuitable."""
    if not source.exists():
        raise ModelNotFound(f"{source}: there is no such checkpoint")
    if not source.is_dir():
        if find_gguf(source) is not None:
            return
        raise NotACheckpoint(
            f"{source}: not a directory; give the directory that holds {CONFIG_FILE}, or a .gguf"
        )
    if (source / MANIFEST_FILE).exists() and not (source / CONFIG_FILE).exists():
        raise NotACheckpoint(f"{source}: is a converted model already")


def spec_of(
    config: Config,
    family: Family,
    overrides: Overrides,
    predicted: bool = False,
) -> ModelSpec:
    """The features of the model; `predicted` where predictors will say which neurons are active.

    The gate of a sparse model stays in memory and decides exactly; where predictors decide it is
    bundled, and so it is where nothing is ever zero. Encodings are chosen later.
    """
    try:
        return _spec_of(config, family, overrides, predicted)
    except LayoutError as problem:
        words = str(problem).removeprefix("spec: ")
        keys = [
            key
            for field, names in _KEYS_OF_FIELDS.items()
            if words.startswith(f"{field} ")
            for key in names
            if key in config.asked and (_is_set(config, key) or field in _OF_DEFAULTS)
        ]
        place = f"{keys[0]}: " if keys else ""
        raise UnsupportedModel(f"{config.path}: {place}{words}") from problem


_KEYS_OF_FIELDS = {
    "norm_eps": ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "embed_scale": ("scale_emb",),
    "residual_scale": ("scale_depth",),
    "logit_scale": ("dim_model_base",),
    "drelu": ("hidden_act", "activation", "activation_function"),
    "experts: groups": ("n_group",),
    "experts: groups_kept": ("topk_group", "n_group"),
    "experts: dense_layers": ("first_k_dense_replace",),
    "rope theta": ("rope_theta", "rope_parameters"),
    "rope": ("rope_parameters", "rope_scaling"),
}
"""What a field of a spec is named in its errors -> the keys that it may come from."""
_OF_DEFAULTS = ("experts: dense_layers",)
"""Those whose default may be what does not fit."""


def _is_set(config: Config, key: str) -> bool:
    return config.values.get(key) is not None


def _spec_of(config: Config, family: Family, overrides: Overrides, predicted: bool) -> ModelSpec:
    features = family.features(config)
    kind, threshold = activation_of(
        config,
        family.activation_key,
        family.activations,
        family.activation_default,
        overrides.act,
        overrides.fatrelu_threshold,
    )
    gate = "none"
    if family.experts:
        gate = "bundled"
    elif family.gated:
        gate = "resident" if kind in SPARSE_ACTIVATIONS and not predicted else "bundled"
    features |= {
        "activation": kind,
        "activation_threshold": threshold,
        "gate": gate,
        "rows_per_neuron": 3 if gate == "bundled" else 2,
    }
    ids = special_ids(config.path.parent, config, features["vocab_size"], family.special_ids)
    config.check_understood()
    return ModelSpec(**features, **ids, dtype="f32")


def doubtful_activation(name: str, spec: ModelSpec, overrides: Overrides) -> str | None:
    """A warning about a model whose neurons are never zero, according to its configuration.

    A name that says relu may be right where the configuration says another activation.
    """
    if spec.selective:
        return None
    if overrides.act is None and _SAYS_RELU.search(name):
        return (
            f"{name}: its name says relu, but its {CONFIG_FILE} says {spec.activation}; if the "
            "model was trained with relu, convert it with --act relu"
        )
    return (
        f"{name}: {spec.activation} is never zero, so a token needs all feed-forward weights, and "
        "is slow where they do not fit into memory; `flashllm plan` says how slow"
    )


def model_name(source: Path) -> str:
    """The name of a directory or of a .gguf, organisation/name for a snapshot in the cache."""
    if source.is_file() and (files := find_gguf(source)) is not None:
        return files.name
    home = source.resolve()
    if home.parent.name == "snapshots":
        return home.parent.parent.name.removeprefix("models--").replace("--", "/")
    return home.name


def _dtype_named(config: Config) -> str:
    """Our name of the encoding that the configuration names."""
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    value = config.get(config.first("dtype", "torch_dtype"))
    return names.get(str(value).removeprefix("torch."), "f16")
