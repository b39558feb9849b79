"""The metadata of a GGUF as the configuration that a checkpoint of transformers would have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.spec import MAX_LAYERS

from ..source.files import RangeFile, source_file
from ..source.gguf_files import GgufModel, int_or
from ..source.gguf_header import MetaValue
from .config import Config
from .gguf_architectures import ARCHITECTURES, GgufArchitecture

QUANTIZATION_VERSION = 2
"""Of blocks; earlier ones lay otherwise."""
_REQUIRED = ("block_count", "embedding_length", "attention.head_count")
_SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_OWN = {
    "flashllm.synthetic": "flashllm_synthetic",
    "flashllm.synthetic_note": "flashllm_synthetic_note",
}
"""What our own generators write, and the keys of config.json that say the same."""
_HARMLESS = {
    "vocab_size", "rope.scaling.finetuned", "attention.value_length", "rope.dimension_count",
}  # fmt: skip
"""Keys that are read another way, or say nothing of mathematics."""
_FREQUENCIES = "rope_freqs.weight"
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
# Published models that scale by wavelength all have these (Llama 3.1's report, arXiv 2407.21783);
# their files give only what they lead to.
_LOW_FREQ, _HIGH_FREQ, _ORIGINAL_POSITIONS = 1.0, 4.0, 8192


def architecture_of(model: GgufModel) -> GgufArchitecture:
    """The architecture that the metadata names; `UnsupportedModel` for another one."""
    name = model.metadata.get("general.architecture")
    kind = model.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{model.path}: a GGUF of a {kind!r:.40}, not of a model")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{model.path}: general.architecture is {name!r:.40}; in GGUF these are read:"
            f" {', '.join(ARCHITECTURES)}. Where config.json and safetensors of the model are"
            " published, convert these"
        )
    found = ARCHITECTURES[name]
    if found.with_experts is not None and model.metadata.get(f"{name}.expert_count"):
        return found.with_experts
    return found


def config_of(model: GgufModel) -> Config:
    """The configuration of a model in GGUF.

    `UnsupportedModel` for what its metadata say and nobody here knows, `NotACheckpoint` where they
    lack what every model needs.
    """
    architecture = architecture_of(model)
    prefix = f"{model.metadata['general.architecture']}."
    own = {
        key.removeprefix(prefix): _plain(model, key, value)
        for key, value in model.metadata.items()
        if key.startswith(prefix)
    }
    _check(model, prefix, own, architecture)
    values: dict[str, Any] = {"model_type": architecture.model_type, **architecture.constants}
    for key, value in own.items():
        if key in {*_SCALING, *_HARMLESS, *architecture.implied}:
            continue
        if key in architecture.settings:
            values[architecture.settings[key]] = value
        elif key in architecture.meanings:
            name, meanings = architecture.meanings[key]
            values[name] = _meant(model, prefix + key, value, meanings)
        else:
            # The family was never asked about it: refused where it sounds like mathematics.
            values[prefix + key] = value
    values |= _layers(model, prefix, own, architecture)
    values |= {ours: model.metadata[key] for key, ours in _OWN.items() if key in model.metadata}
    tensors = model.tensors()
    values |= {flag: tensor in tensors for tensor, flag in architecture.biases.items()}
    values["vocab_size"] = tensors[_EMBEDDING].shape[0]
    values["tie_word_embeddings"] = _HEAD not in tensors
    scaling = _scaling(model, own, values)
    values["rope_scaling"] = scaling if scaling is None else scaling | dict(architecture.scaling)
    _check_rotated(model, prefix, own, values)
    return Config(model.path, values | _special_ids(model.metadata))


def _check(
    model: GgufModel, prefix: str, own: Mapping[str, Any], architecture: GgufArchitecture
) -> None:
    """What must be there, and what may only have one value."""
    for key in _REQUIRED:
        if key not in own:
            raise NotACheckpoint(f"{model.path}: {prefix}{key} is missing; is it a whole model?")
    if _EMBEDDING not in model.tensors():
        raise NotACheckpoint(f"{model.path}: has no {_EMBEDDING}; is it a whole model?")
    for key, value in architecture.implied.items():
        if own.get(key, value) != value:
            raise UnsupportedModel(
                f"{model.path}: {prefix}{key} is {own[key]!r:.40}; supported: {value!r}"
            )
    version = model.metadata.get("general.quantization_version", QUANTIZATION_VERSION)
    if version != QUANTIZATION_VERSION:
        raise UnsupportedModel(
            f"{model.path}: general.quantization_version is {version!r:.40}; supported:"
            f" {QUANTIZATION_VERSION}"
        )


def _plain(model: GgufModel, key: str, value: MetaValue) -> Any:
    """A value as JSON would have it; one for all layers where there is one for each, all alike."""
    if not isinstance(value, np.ndarray):
        return value
    found = np.unique(value)
    if len(found) != 1:
        raise UnsupportedModel(
            f"{model.path}: {key} differs between layers; only models whose layers are alike are"
            " supported"
        )
    return found[0].item()


def _meant(model: GgufModel, key: str, value: Any, meanings: Mapping[Any, Any]) -> Any:
    if type(value) is not int or value not in meanings:
        raise UnsupportedModel(
            f"{model.path}: {key} is {value!r:.40}; supported: {', '.join(map(str, meanings))}"
        )
    return meanings[value]


def _layers(
    model: GgufModel, prefix: str, own: Mapping[str, Any], architecture: GgufArchitecture
) -> dict[str, Any]:
    """How many of the blocks are layers, and which of them have a window."""
    blocks, following = own["block_count"], own.get(architecture.following, 0)
    if type(blocks) is not int or type(following) is not int:
        return {}  # said when the number is read
    if following and not 0 < following < blocks:
        raise NotACheckpoint(
            f"{model.path}: {prefix}{architecture.following} is {following}, but there are"
            f" {blocks} blocks"
        )
    layers, windowed = blocks - following, architecture.windowed
    found: dict[str, Any] = {architecture.settings["block_count"]: layers}
    if windowed is not None and own.get(windowed.window) and layers <= MAX_LAYERS:
        pattern = [int(layer % windowed.period != 0) for layer in range(layers)]
        found |= dict.fromkeys(windowed.lists, pattern)
    return found


def _scaling(
    model: GgufModel, own: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """`rope_scaling`, from the metadata or from what the model's frequencies are divided by."""
    given = {name: own[key] for key, name in _SCALING.items() if key in own}
    kind = given.get("rope_type", "none")
    by_wavelength = _wavelength_scaling(model, values)
    if by_wavelength is not None:
        if kind != "none":
            raise UnsupportedModel(
                f"{model.path}: rope.scaling.type and {_FREQUENCIES} are both set"
            )
        return by_wavelength
    if kind == "linear":
        return {"rope_type": "linear", "factor": given.get("factor")}
    return None if kind == "none" else given


def _wavelength_scaling(model: GgufModel, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Scaling of kind llama3, whose factors of each frequency are a tensor; None without one."""
    tensor = model.tensors().get(_FREQUENCIES)
    if tensor is None:
        return None
    if tensor.dtype != "f32" or len(tensor.shape) != 1 or tensor.nbytes > 1 << 20:
        raise UnsupportedModel(f"{model.path}: {_FREQUENCIES} is no row of F32")
    factors = _read_row(model)
    factor = float(factors.max())
    if (factors == 1).all():
        return None
    theta = values.get("rope_theta", 10000.0)
    known = isinstance(theta, float) and theta > 1 and math.isfinite(factor) and factor > 0
    if not known or not np.allclose(
        factors, _wavelength_factors(len(factors), theta, factor), rtol=1e-4
    ):
        raise UnsupportedModel(
            f"{model.path}: {_FREQUENCIES} holds factors that nobody here knows a rule of"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW_FREQ,
        "high_freq_factor": _HIGH_FREQ,
        "original_max_position_embeddings": _ORIGINAL_POSITIONS,
    }


def _wavelength_factors(count: int, theta: float, factor: float) -> NDArray[np.float64]:
    """What `count` frequencies are divided by (transformers: `_compute_llama3_parameters`)."""
    frequencies = theta ** -(np.arange(count) / count)
    turns = _ORIGINAL_POSITIONS * frequencies / (2 * math.pi)
    smooth = np.clip((turns - _LOW_FREQ) / (_HIGH_FREQ - _LOW_FREQ), 0, 1)
    found: NDArray[np.float64] = 1 / ((1 - smooth) / factor + smooth)
    return found


def _read_row(model: GgufModel) -> NDArray[np.float32]:
    """The factors of the frequencies."""
    name, tensor = next(
        (name, tensor)
        for name, header in zip(model.files.names, model.headers, strict=True)
        for tensor in header.tensors
        if tensor.name == _FREQUENCIES
    )
    found = np.empty(tensor.shape, np.float32)
    with RangeFile(source_file(model.files.directory, name)) as file:
        file.read_into(found.view(np.uint8).data, tensor.offset)
    return found


def _check_rotated(
    model: GgufModel, prefix: str, own: Mapping[str, Any], values: dict[str, Any]
) -> None:
    """Heads of values are as wide as those of keys; the part that is rotated goes to `values`."""
    width, heads = (int_or(values.get(key), 0) for key in ("hidden_size", "num_attention_heads"))
    dims = int_or(values.get("head_dim"), width // heads if heads > 0 else 0)
    if (value_dims := own.get("attention.value_length", dims)) != dims:
        raise UnsupportedModel(
            f"{model.path}: {prefix}attention.value_length is {value_dims!r:.40}, but keys have"
            f" {dims}"
        )
    rotated = int_or(own.get("rope.dimension_count"), dims)
    if rotated != dims and dims > 0:
        values["partial_rotary_factor"] = rotated / dims


def _special_ids(metadata: Mapping[str, MetaValue]) -> dict[str, Any]:
    """Beginning and ends of a text as config.json names them; None where the file has none."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [metadata.get(f"tokenizer.ggml.{name}") for name in names]
    found = list(dict.fromkeys(end for end in ends if type(end) is int))
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": found or None,
    }
