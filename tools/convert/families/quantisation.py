"""Quantised weights by `quantization_config`: which of them can be taken over as they are.

mxfp4 by tensors that name it; four bits of GPTQ and of compressed-tensors, symmetric and with the
inputs in order, which are our int4 (`source/packed_int4.py`); four bits of AWQ, whose zero points
our int8 has room for and int4 has not (`source/packed_awq.py`); floats of eight bits with scales of
squares, which become bf16 as in transformers (`source/fp8_blocks.py`). Those of Apple's MLX have
offsets and would be rounded again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..source.fp8_blocks import SIDE

_PACKED = "pack-quantized"
_INT4 = "supported are symmetric weights of four bits whose inputs are in order"
_SUPPORTED = (
    "plain weights, mxfp4, symmetric int4 of gptq and of compressed-tensors, awq, and fp8 in"
    f" squares of {SIDE}"
)


class QuantisationError(ValueError):
    """What a setting says, and what would be supported instead."""


def encoding_of(value: Any) -> str | None:
    """Our encoding of quantised weights, None for plain ones; `QuantisationError` for others.

    `value` is what `quantization_config` is set to.
    """
    if not value:
        return None
    if is_mlx(value):
        encoding = _OF_MLX.get(value["bits"]) if type(value["bits"]) is int else None
        if encoding is None:
            raise QuantisationError(
                f"is that of Apple's MLX, in {str(value['bits'])[:8]} bits; 4 and 8 are supported,"
                " with --requantise, since its groups have offsets, which no encoding here has;"
                " take the original weights"
            )
        return encoding
    method = value.get("quant_method") if isinstance(value, dict) else None
    if not isinstance(method, str) or method not in _CHECKED:
        raise QuantisationError(
            f"is set (quant_method {str(method or value)[:40]!r}); supported are {_SUPPORTED}"
        )
    encoding, check = _CHECKED[method]
    if check is not None:
        check(value)
    return encoding


def is_mlx(value: Any) -> bool:
    """Whether a setting is as mlx-lm writes it: it names no method."""
    return (
        isinstance(value, dict)
        and "quant_method" not in value
        and {"group_size", "bits"} <= value.keys()
    )


def _check_gptq(values: Mapping[str, Any]) -> None:
    _want(values, _INT4, bits=4, sym=True, desc_act=(False, None))
    _want(values, _INT4, checkpoint_format=("gptq", None))


def _check_awq(values: Mapping[str, Any]) -> None:
    supported = "of awq supported are four bits in the order of its version 'gemm'"
    _want(values, supported, bits=(4, None), w_bit=(4, None), version=("gemm", "GEMM", None))


def _check_fp8(values: Mapping[str, Any]) -> None:
    supported = f"of fp8 supported are floats of e4m3 with a scale for each {SIDE} x {SIDE}"
    _want(values, supported, weight_block_size=[SIDE, SIDE], fmt=("e4m3", None))


def _check_compressed(values: Mapping[str, Any]) -> None:
    _want(values, _INT4, format=_PACKED)
    groups = values.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    if not schemes or not all(isinstance(scheme, dict) for scheme in schemes):
        raise QuantisationError("has no config_groups")
    for scheme in schemes:
        _want(scheme, _INT4, format=(_PACKED, None), input_activations=None)
        weights = scheme.get("weights")
        if not isinstance(weights, dict):
            raise QuantisationError("has a group without weights")
        _want(weights, _INT4, num_bits=4, type="int", symmetric=True)
        # Any other order of the inputs is that of the calibration, not of what is stored.
        _want(weights, _INT4, actorder=(None, False, "static", "weight"))


def _want(values: Mapping[str, Any], supported: str, **wanted: Any) -> None:
    """`QuantisationError` unless each key has its value, or one of several."""
    for key, right in wanted.items():
        allowed = right if isinstance(right, tuple) else (right,)
        found = values.get(key)
        if not any(found is one or (found == one and type(found) is type(one)) for one in allowed):
            raise QuantisationError(
                f"has {key} {str(found)[:40]!r}, and not {allowed[0]!r}; {supported}, so take"
                " another file, or the original weights"
            )


_OF_MLX = {4: "int4", 8: "int8"}
"""What its weights become, by their bits: rounded again (`source/packed_affine.py`)."""
_CHECKED: dict[str, tuple[str, Callable[[Mapping[str, Any]], None] | None]] = {
    "mxfp4": ("mxfp4", None),
    "gptq": ("int4", _check_gptq),
    "awq": ("int8", _check_awq),
    "compressed-tensors": ("int4", _check_compressed),
    "fp8": ("bf16", _check_fp8),
}
"""By `quant_method`."""
