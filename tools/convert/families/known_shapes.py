"""Published models by name: their shapes, so that they can be planned for, and where they are.

The data are in `known_models.toml`, and nowhere else.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import UsageError
from flashllm.spec import ModelSpec

from .config import CONFIG_FILE, Config
from .spec_from_config import describe_config

DATA_FILE = Path(__file__).with_name("known_models.toml")
_NEAR_NAMES = 4
_SAME_KIND = 0.75
"""How much of the letters in front must be alike for two names to be of one kind."""
_SIZE_FACTOR = 2.5
"""How many times as large a model may be that was meant."""
_PUNCTUATION = re.compile(r"[^a-z0-9.]")
"""Of no meaning in a name; a point is: 1.3b is not 13b."""
_TUNED = re.compile(r"[-_](instruct|chat|base|hf|it)$", re.IGNORECASE)
"""Endings of names that change no shape."""
_KIND = re.compile(r"[a-z]+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A published model."""

    name: str
    config: dict[str, Any]
    """What its `config.json` says."""
    family: str
    """What people call its kind."""
    repository: str = ""
    """organisation/name on the hub; "" where there is none."""
    gated: bool = False
    """Whether its licence must be accepted there first."""
    listed: bool = False
    """Whether it is one of those that this program runs well."""


def _read(data: Mapping[str, Mapping[str, Any]]) -> dict[str, KnownModel]:
    """The models of the file, each completed by what it is like."""
    entries = {**data["base"], **data["model"]}

    def completed(name: str) -> dict[str, Any]:
        own = dict(entries[name])
        config = dict.fromkeys(own.pop("null", ())) | own.pop("config", {})
        like = own.pop("like", None)
        found = {} if like is None else completed(like)
        if like in data["model"]:
            found.pop("listed", None)
        return found | own | {"config": found.get("config", {}) | config}

    return {name: KnownModel(name, **completed(name)) for name in data["model"]}


KNOWN = _read(tomllib.loads(DATA_FILE.read_text("utf-8")))
SHAPES: dict[str, dict[str, Any]] = {name: model.config for name, model in KNOWN.items()}
"""Name -> what its `config.json` says."""


def find_known(text: str) -> KnownModel | None:
    """The model of that name or repository, whatever its capitals and punctuation."""
    plain = {_plain(text), _plain(_TUNED.sub("", text))}
    for name, model in KNOWN.items():
        if plain & {_plain(name), _plain(model.repository)} - {""}:
            return model
    return None


def near_names(text: str) -> list[str]:
    """Names that may have been meant, the nearest first; none where nothing is near.

    Near are models of the same kind and about the same size, where the text says one.
    """
    text = text.rpartition("/")[2].lower()
    distances = {}
    for name in KNOWN:
        if (distance := _distance(text, name)) is not None:
            distances[name] = distance
    return sorted(distances, key=lambda name: distances[name])[:_NEAR_NAMES]


def _distance(text: str, name: str) -> float | None:
    """How far a name is from what was typed; None for one that cannot have been meant."""
    kind, other = _KIND.match(text), _KIND.match(name)
    if kind is None or other is None or _alike(kind.group(), other.group()) < _SAME_KIND:
        return None
    size, known = _billions(text), _billions(name)
    apart = 0.0 if size is None or known is None else abs(math.log(size / known))
    if apart > math.log(_SIZE_FACTOR):
        return None
    typed, plain = _plain(text), _plain(name)
    return apart if plain.startswith(typed) else apart + 2 * (1 - _alike(typed, plain))


def _alike(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()


def _billions(name: str) -> float | None:
    """The size that a name says, in billions of weights."""
    match = _SIZE.search(name)
    if match is None or not float(match[1]):
        return None
    return float(match[1]) / (1 if match[2] == "b" else 1000)


def _plain(text: str) -> str:
    return _PUNCTUATION.sub("", text.lower())


def describe_shape(
    name: str,
    *,
    act: str | None = None,
    fatrelu_threshold: float | None = None,
    dtype: str | None = None,
    resident_dtype: str | None = None,
) -> ModelSpec:
    """The spec of a known model, as `describe` would find it in a checkpoint's directory.

    `UsageError` for a name that is none, with those that are near.
    """
    model = find_known(name)
    if model is None:
        near = near_names(name)
        advice = f"one of: {', '.join(near)}" if near else "a name from `flashllm models --all`"
        raise UsageError(
            f"{name}: no such directory, and no model of that name is known. Give the directory of"
            f" a checkpoint or of a converted model, or {advice}"
        )
    config = Config(Path(f"built-in:{model.name}") / CONFIG_FILE, dict(model.config))
    return describe_config(
        config,
        act=act,
        fatrelu_threshold=fatrelu_threshold,
        dtype=dtype,
        resident_dtype=resident_dtype,
    )
