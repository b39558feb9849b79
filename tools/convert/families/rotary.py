"""Rotary positions from a configuration: `rope_parameters`, or the older keys that it replaced.

Semantics are those of transformers 5.23, `modeling_rope_utils.py`, for the kinds named here. Every
other kind, and every key that a kind does not have, is an error that names it.
"""

from __future__ import annotations

import math
from typing import Any

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.spec import MAX_POSITIONS, Rope

from .config import Config, number_above_zero

ALL_KINDS = ("default", "linear", "llama3", "yarn")
_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ),
    "yarn": (
        "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "original_max_position_embeddings", "truncate",
    ),
}  # fmt: skip
_EVERYWHERE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_SHARE_KEYS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent", "rope_percent")
_ORIGINAL = "original_max_position_embeddings"


def rope_of(
    config: Config,
    head_dim: int,
    max_positions: int,
    *,
    share: float = 1.0,
    partial: bool = False,
    kinds: tuple[str, ...] = ALL_KINDS,
) -> Rope:
    """The rotary positions of a model.

    `share` of a head is rotated where the configuration does not say how much; only a `partial`
    family may rotate less than all of it.
    """
    where, parameters = _parameters(config)
    kind = _kind(config, where, parameters, kinds)
    theta = _number(config, where, parameters, "rope_theta", config.number("rope_theta", 10000.0))
    share = _number(config, where, parameters, "partial_rotary_factor", _share(config, share))
    if share > 1 or (share != 1 and not partial):
        raise UnsupportedModel(
            f"{config.path}: partial_rotary_factor is {share}; models of this model_type rotate "
            "all of a head"
        )
    values: dict[str, Any] = {"theta": theta, "dims": _rotated(config, where, head_dim, share)}
    outer = config.get(_ORIGINAL)
    if kind == "default":
        return Rope(**values)
    values |= {"scaling": kind}
    if kind in ("llama3", "yarn"):
        original = outer if outer is not None else parameters.get(_ORIGINAL, max_positions)
        if type(original) is not int or not 1 <= original <= MAX_POSITIONS:
            raise NotACheckpoint(
                f"{config.path}: {where}: {_ORIGINAL} is {original!r}; expected 1 to "
                f"{MAX_POSITIONS}"
            )
        values["original_positions"] = original
    if kind == "yarn":
        return Rope(**values, **_yarn(config, where, parameters, values, max_positions))
    names = ("factor", "low_freq_factor", "high_freq_factor")
    for name in names[: 1 if kind == "linear" else 3]:
        values[name] = _number(config, where, parameters, name)
    if kind == "llama3" and values["high_freq_factor"] <= values["low_freq_factor"]:
        raise NotACheckpoint(
            f"{config.path}: {where}: high_freq_factor is not above low_freq_factor"
        )
    return Rope(**values)


def _rotated(config: Config, where: str, head_dim: int, share: float) -> int:
    """How many values of a head are rotated, in pairs; else an error that names what says so."""
    dims = int(head_dim * share)
    if dims >= 2 and dims % 2 == 0:
        return dims
    names = [key for key in _SHARE_KEYS if config.values.get(key) is not None]
    factor = f"{names[0] if names else f'{where}: {_SHARE_KEYS[0]}'} ({share:g})"
    heads = config.first("num_attention_heads", "n_head")
    width = "head_dim" if config.get("head_dim") is not None else f"hidden_size over {heads}"
    of = f"{factor} of {width} ({head_dim})" if share != 1 else f"{width} ({head_dim})"
    raise UnsupportedModel(
        f"{config.path}: {of} are {dims} rotated values of a head; they are rotated in pairs, so"
        " an even number is needed"
    )


def _yarn(
    config: Config,
    where: str,
    parameters: dict[str, Any],
    values: dict[str, Any],
    max_positions: int,
) -> dict[str, Any]:
    """What only yarn has (arXiv 2309.00071); the attention factor as transformers infers it."""
    factor = _number(
        config, where, parameters, "factor", max_positions / values["original_positions"]
    )
    mscale, mscale_all = (parameters.get(name) for name in ("mscale", "mscale_all_dim"))
    if mscale and mscale_all:
        inferred = _mscale(factor, _number(config, where, parameters, "mscale")) / _mscale(
            factor, _number(config, where, parameters, "mscale_all_dim")
        )
    else:
        inferred = _mscale(factor, 1.0)
    truncate = parameters.get("truncate", True)
    if not isinstance(truncate, bool):
        raise NotACheckpoint(f"{config.path}: {where}: truncate is {truncate!r}")
    return {
        "factor": factor,
        "attention_factor": _number(config, where, parameters, "attention_factor", inferred),
        "beta_fast": _number(config, where, parameters, "beta_fast", 32.0),
        "beta_slow": _number(config, where, parameters, "beta_slow", 1.0),
        "truncate": truncate,
    }


def _mscale(scale: float, weight: float) -> float:
    """How much sharper attention must be over a context `scale` times as long."""
    return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0


def _parameters(config: Config) -> tuple[str, dict[str, Any]]:
    """The key that the scaling stands under, and its values, those that are null left out."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if new and old and new != old:
        raise config.refuse("rope_scaling", "rope_parameters is set too, and says something else")
    where = "rope_scaling" if old and not new else "rope_parameters"
    parameters = new or old or {}
    if not isinstance(parameters, dict):
        raise NotACheckpoint(f"{config.path}: {where} is {parameters!r}; expected an object")
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    if nested:
        if len(nested) != len(parameters) or any(value != nested[0] for value in nested):
            raise UnsupportedModel(
                f"{config.path}: {where} differs between kinds of layers; one for all is supported"
            )
        parameters = nested[0]
    return where, {key: value for key, value in parameters.items() if value is not None}


def _kind(config: Config, where: str, parameters: dict[str, Any], kinds: tuple[str, ...]) -> str:
    """The kind of scaling, one of `kinds`, all of whose keys are known."""
    key = "rope_type" if "rope_type" in parameters else "type"
    kind = parameters.get(key, "default")
    if kind not in kinds:
        raise UnsupportedModel(
            f"{config.path}: {where}: {key} is {kind!r}; supported: {', '.join(kinds)}"
        )
    for name in parameters:
        if name not in _EVERYWHERE and name not in _KEYS[kind]:
            raise UnsupportedModel(
                f"{config.path}: {where}: {name} is {parameters[name]!r}; nobody here knows what "
                f"it changes in positions of kind {kind}"
            )
    return str(kind)


def _share(config: Config, default: float) -> float:
    """The part of a head that is rotated, by any of the names that it goes by."""
    given = {key: config.number(key) for key in _SHARE_KEYS if config.get(key) is not None}
    if len(set(given.values())) > 1:
        raise UnsupportedModel(f"{config.path}: {' and '.join(given)} contradict each other")
    return next(iter(given.values()), default)


def _number(
    config: Config,
    where: str,
    parameters: dict[str, Any],
    key: str,
    default: float | None = None,
) -> float:
    """A number above 0 of the scaling; required unless there is a default."""
    return number_above_zero(config.path, f"{where}: {key}", parameters.get(key), default)
