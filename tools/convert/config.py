"""Strict reading of `config.json`: whole numbers in range, true or false, names that are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.flash.strict_json import parse_object

from .files import read_small

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
CONFIG_BYTES_MAX = 4 << 20

MATHS_KEYS = ("quantization_config",)
"""Keys of any family that change what the weights mean, when they are set to something."""


@dataclass(frozen=True, slots=True)
class Config:
    """The values of a `config.json`; the getters raise errors that name file, key and value."""

    path: Path
    values: dict[str, Any]

    def size(self, key: str, limit: int, default: int | None = None) -> int:
        """A whole number of 1 to `limit`; required unless there is a default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value <= limit:
            found = "missing" if value is None else f"{value!r}"
            raise NotACheckpoint(f"{self.path}: {key} is {found}; expected 1 to {limit}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Either true or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise NotACheckpoint(f"{self.path}: {key} is {value!r}; expected true or false")
        return value

    def choice(self, key: str, known: tuple[str, ...], default: str) -> str:
        """One of the `known` names, else `UnsupportedModel` listing them."""
        value = self.values.get(key, default)
        if value not in known:
            raise UnsupportedModel(
                f"{self.path}: {key} is {value!r}; supported: {', '.join(known)}"
            )
        return str(value)


def read_config(directory: Path) -> Config:
    """The configuration of a checkpoint; `NotACheckpoint` where there is none."""
    if not (directory / CONFIG_FILE).exists():
        raise NotACheckpoint(
            f"{directory}: not a checkpoint: it has no {CONFIG_FILE}. Expected a directory as "
            "Hugging Face transformers saves it"
        )
    config = _read(directory, CONFIG_FILE)
    for key in MATHS_KEYS:
        if config.values.get(key):
            raise UnsupportedModel(f"{config.path}: {key} is set; only plain weights are supported")
    return config


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
    return (defaults[key],) if key in defaults else ()
