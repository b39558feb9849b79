"""Strict reading of `config.json`: whole numbers in range, true or false, names that are known.

Keys that were read are remembered: a key that sounds like mathematics and is set, but was never
read, is one that we do not understand, and the checkpoint is refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.untrusted.strict_json import parse_object

from ..source.files import read_small
from .quantisation import QuantisationError, encoding_of, is_mlx

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
CONFIG_BYTES_MAX = 4 << 20
NUMBER_MAX = 1e12

_QUANTISATION_KEY, _MLX_KEY = "quantization_config", "quantization"
"""Of any family; changes what the weights mean when it is set to something."""
_MATHS = re.compile(
    r"activation|(^|_)act(_|$)|alibi|attn|attention|bias|softcap|(^|_)cap|clip|conv_|embed|expert|"
    r"gate|head|layer_type|logit|mamba|moe|mul|mup|norm|ntk|position|quant|resid|rope|rotary|scal|"
    r"sink|sliding|sparse|ssm|window"
)
_HARMLESS = re.compile(r"_.*|output_.*|.*(drop|init|implementation|flash|sdpa|auto_map).*")
"""Training, remembered paths and the choice of a kernel: nothing that a result depends on."""


@dataclass(frozen=True, slots=True)
class Config:
    """The values of a `config.json`; the getters raise errors that name file, key and value."""

    path: Path
    values: dict[str, Any]
    asked: set[str] = field(default_factory=set)
    """Keys that a getter was called for, and so are understood."""

    def get(self, key: str) -> Any:
        """The value as it stands; None where there is none."""
        self.asked.add(key)
        return self.values.get(key)

    def first(self, *keys: str) -> str:
        """The first of several names of one setting that is set, else the first name."""
        self.asked.update(keys)
        return next((key for key in keys if self.values.get(key) is not None), keys[0])

    def size(self, key: str, limit: int, default: int | None = None) -> int:
        """A whole number of 1 to `limit`; required unless there is a default."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value <= limit:
            found = "missing" if value is None else f"{value!r}"
            raise NotACheckpoint(f"{self.path}: {key} is {found}; expected 1 to {limit}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0; required unless there is a default."""
        return number_above_zero(self.path, key, self.get(key), default)

    def flag(self, key: str, default: bool) -> bool:
        """Either true or false."""
        self.asked.add(key)
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise NotACheckpoint(f"{self.path}: {key} is {value!r}; expected true or false")
        return value

    def choice(self, key: str, known: tuple[str, ...], default: str) -> str:
        """One of the `known` names, else `UnsupportedModel` listing them."""
        self.asked.add(key)
        value = self.values.get(key, default)
        if value not in known:
            raise UnsupportedModel(
                f"{self.path}: {key} is {value!r}; supported: {', '.join(known)}"
            )
        return str(value)

    def refuse(self, key: str, reason: str) -> UnsupportedModel:
        """The error for a setting that cannot be followed."""
        return UnsupportedModel(f"{self.path}: {key} is {self.values.get(key)!r}; {reason}")

    def check_understood(self) -> None:
        """`UnsupportedModel` for a key about the model's mathematics that nobody asked for."""
        for key, value in self.values.items():
            unknown = value and key not in self.asked and not _HARMLESS.fullmatch(key)
            if unknown and _MATHS.search(key):
                raise self.refuse(
                    key, "nobody here knows what it changes in a model of this model_type"
                )


def number_above_zero(path: Path, key: str, value: object, default: float | None = None) -> float:
    """A finite number above 0; `NotACheckpoint` naming the key for anything else."""
    if value is None and default is not None:
        return default
    if type(value) not in (int, float) or not 0 < value <= NUMBER_MAX:  # type: ignore[operator]
        found = "missing" if value is None else f"{value!r}"
        raise NotACheckpoint(f"{path}: {key} is {found}; expected a number above 0")
    result = float(value)  # type: ignore[arg-type]
    assert math.isfinite(result)
    return result


def read_config(directory: Path) -> Config:
    """The configuration of a checkpoint; `NotACheckpoint` where there is none."""
    if not (directory / CONFIG_FILE).exists():
        raise NotACheckpoint(
            f"{directory}: not a checkpoint: it has no {CONFIG_FILE}. Expected a directory as "
            "Hugging Face transformers saves it, or a model in GGUF"
        )
    config = _read(directory, CONFIG_FILE)
    quantisation_of(config)
    return config


def quantisation_of(config: Config) -> str | None:
    """The encoding of ours that a checkpoint's quantised weights have; None for plain weights.

    `UnsupportedModel` for weights that are quantised in another way.
    """
    # MLX writes its own key, and lately the usual one besides.
    key = _QUANTISATION_KEY
    if is_mlx(config.values.get(_MLX_KEY)):
        key = _MLX_KEY
        if config.values.get(_QUANTISATION_KEY) == config.values[_MLX_KEY]:
            config.get(_QUANTISATION_KEY)  # says the same, so that it is understood
    try:
        return encoding_of(config.get(key))
    except QuantisationError as problem:
        raise UnsupportedModel(f"{config.path}: {key} {problem}") from problem


def _read(directory: Path, name: str) -> Config:
    """One JSON file of the checkpoint."""
    path = directory / name
    raw = read_small(directory, name, CONFIG_BYTES_MAX)
    return Config(path, parse_object(raw, path, NotACheckpoint, depth_max=16))


def special_ids(
    directory: Path, config: Config, vocab_size: int, defaults: dict[str, int]
) -> dict[str, Any]:
    """`bos_id` and `eos_ids` of a spec: generation_config.json, else config.json, else defaults."""
    places = [config]
    if (directory / GENERATION_FILE).exists():
        places.insert(0, _read(directory, GENERATION_FILE))
    bos_ids = _first_ids(places, "bos_token_id", vocab_size, defaults)
    eos_ids = _first_ids(places, "eos_token_id", vocab_size, defaults)
    return {"bos_id": bos_ids[0] if bos_ids else None, "eos_ids": eos_ids}


def _first_ids(
    places: list[Config], key: str, vocab_size: int, defaults: dict[str, int]
) -> tuple[int, ...]:
    """The ids under `key` in the first place that has them; a number or a list of numbers."""
    for place in places:
        value = place.values.get(key)
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < vocab_size for i in ids):
            raise NotACheckpoint(
                f"{place.path}: {key} is {value!r}; expected ids below {vocab_size}"
            )
        return tuple(ids)
    if any(key in place.values for place in places):
        return ()
    default = defaults.get(key)
    return (default,) if default is not None and default < vocab_size else ()
