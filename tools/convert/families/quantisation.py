"""Quantised weights by `quantization_config`: which of them can be taken over as they are.

mxfp4 by tensors that name it; four bits of GPTQ and of compressed-tensors, symmetric and with the
inputs in order, which are our int4 (`source/packed_int4.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PACKED = "pack-quantized"
_SUPPORTED = "plain weights, mxfp4, and symmetric int4 of gptq and of compressed-tensors"


class QuantisationError(ValueError):
    """What a setting says, and what would be supported instead."""


def encoding_of(value: Any) -> str | None:
    """Our encoding of quantised weights, None for plain ones; `QuantisationError` for others.

    `value` is what `quantization_config` is set to.
    """
    if not value:
        return None
    method = value.get("quant_method") if isinstance(value, dict) else value
    if method == "mxfp4" and isinstance(value, dict):
        return "mxfp4"
    if method == "gptq" and isinstance(value, dict):
        _check_gptq(value)
        return "int4"
    if method == "compressed-tensors" and isinstance(value, dict):
        _check_compressed(value)
        return "int4"
    raise QuantisationError(
        f"is set (quant_method {str(method)[:40]!r}); supported are {_SUPPORTED}"
    )


def _check_gptq(values: Mapping[str, Any]) -> None:
    _want(
        values, "gptq", bits=4, sym=True, desc_act=(False, None), checkpoint_format=("gptq", None)
    )


def _check_compressed(values: Mapping[str, Any]) -> None:
    what = "compressed-tensors"
    _want(values, what, format=_PACKED)
    groups = values.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    if not schemes or not all(isinstance(scheme, dict) for scheme in schemes):
        raise QuantisationError(f"has no config_groups; {what} needs them")
    for scheme in schemes:
        _want(scheme, what, format=(_PACKED, None), input_activations=None)
        weights = scheme.get("weights")
        if not isinstance(weights, dict):
            raise QuantisationError(f"has a group without weights; {what} needs them")
        _want(weights, what, num_bits=4, type="int", symmetric=True)
        # Any other order of the inputs is that of the calibration, not of what is stored.
        _want(weights, what, actorder=(None, False, "static", "weight"))


def _want(values: Mapping[str, Any], what: str, **wanted: Any) -> None:
    """`QuantisationError` unless each key has its value, or one of several."""
    for key, right in wanted.items():
        allowed = right if isinstance(right, tuple) else (right,)
        found = values.get(key)
        if not any(found is one or (found == one and type(found) is type(one)) for one in allowed):
            raise QuantisationError(
                f"has {key} {str(found)[:40]!r}, and not {allowed[0]!r}; of {what} supported are"
                " symmetric weights of four bits whose inputs are in order, so take another file,"
                " or the original weights"
            )
