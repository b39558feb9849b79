"""The feed-forward activation: its name in a configuration, and what the user sets instead."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from flashllm.errors import UnsupportedModel, UsageError

from .config import Config

NAMES: Mapping[str, str] = {
    "relu": "relu",
    "fatrelu": "fatrelu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
"""Names in a configuration -> ours; those of transformers, and fatrelu."""
GATED_NAMES: Mapping[str, str] = {**NAMES, "drelu": "drelu"}
"""Drelu is relu of the gate times relu of up."""

_THRESHOLD_KEY = "hidden_act_param"
_WITH_THRESHOLD = re.compile(r"(fatrelu)_([0-9]+(?:\.[0-9]+)?)")


def activation_of(
    config: Config,
    key: str,
    names: Mapping[str, str],
    default: str,
    act: str | None,
    fatrelu_threshold: float | None,
) -> tuple[str, float]:
    """Our name of the activation, and the threshold of fatrelu (0 for all others).

    `act` and `fatrelu_threshold` are what the user asked for. `UnsupportedModel` for a name in
    the configuration that is not in `names`, `UsageError` for one that the user gave.
    """
    given = config.get(key)
    parameter = config.get(_THRESHOLD_KEY)
    name = act if act is not None else default if given is None else given
    match = _WITH_THRESHOLD.fullmatch(name) if isinstance(name, str) else None
    if match:
        name, parameter = match[1], float(match[2])
    if not isinstance(name, str) or name not in names:
        supported = ", ".join(names)
        if act is not None:
            raise UsageError(f"--act is {act!r}; for this model_type: {supported}")
        raise UnsupportedModel(f"{config.path}: {key} is {name!r}; supported: {supported}")
    kind = names[name]
    if fatrelu_threshold is not None:
        return _asked_for(kind, fatrelu_threshold)
    if kind != "fatrelu":
        if parameter and act is None:
            raise config.refuse(_THRESHOLD_KEY, f"{name} has no parameter")
        return kind, 0.0
    if type(parameter) not in (int, float) or not 0 <= parameter < math.inf:
        found = "missing" if parameter is None else repr(parameter)
        raise UnsupportedModel(
            f"{config.path}: {_THRESHOLD_KEY} is {found}; fatrelu needs a threshold: give "
            "--fatrelu-threshold"
        )
    return ("fatrelu", float(parameter)) if parameter else ("relu", 0.0)


def _asked_for(kind: str, threshold: float) -> tuple[str, float]:
    """Relu or fatrelu with the threshold that the user gave."""
    if not 0 <= threshold < math.inf:
        raise UsageError(f"--fatrelu-threshold is {threshold}; expected 0 or more")
    if kind not in ("relu", "fatrelu"):
        raise UsageError(
            f"--fatrelu-threshold is for models with relu or fatrelu; the activation here is {kind}"
        )
    return ("fatrelu", float(threshold)) if threshold else ("relu", 0.0)
