"""Decodes encoded rows with torch, on any device: the values that the core decodes, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from flashllm.dtypes import GROUP, GROUP_BYTES, SCALE_BYTES

_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_MXFP4_NUMBERS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the floats of the codes; scales are half of the format's."""
_MXFP4_BIAS = 128


def decode(raw: Tensor, dtype: str, columns: int) -> Tensor:
    """Encoded rows [n, row_bytes] of uint8 to f32 [n, columns], on the device that they are on.

    Layouts of the encodings: `core/native/kernels/rows.h`.
    """
    if dtype in _FLOATS:
        wanted, raw = _FLOATS[dtype], raw.contiguous()
        if raw.storage_offset() % wanted.itemsize:
            raw = raw.clone()  # a view as wider numbers begins at one of them
        return raw.view(wanted).to(torch.float32)
    rows, groups = len(raw), raw.shape[1] // GROUP_BYTES[dtype]
    packed_bytes = groups * (GROUP_BYTES[dtype] - SCALE_BYTES[dtype])
    packed = raw[:, :packed_bytes].reshape(rows, groups, -1)
    ends = raw[:, packed_bytes:].contiguous()
    if dtype == "int8":
        numbers = packed.contiguous().view(torch.int8).to(torch.float32)
    else:
        codes = torch.cat((packed & 15, packed >> 4), dim=2)
        if dtype == "int4":
            numbers = codes.to(torch.float32) - 8
        else:
            table = torch.tensor(_MXFP4_NUMBERS, dtype=torch.float32, device=raw.device)
            numbers = table[codes.to(torch.int64)]
    if dtype == "mxfp4":
        scales = _powers_of_two(ends.to(torch.int32) - _MXFP4_BIAS)
    else:
        scales = ends.view(torch.float16).to(torch.float32)
    values = numbers * scales[:, :, None]
    return values.view(rows, groups * GROUP)[:, :columns]


def _powers_of_two(exponents: Tensor) -> Tensor:
    """2 ** exponents, -128 to 124, as f32: put together from bits, since `exp2` may round."""
    # Below -126 the number is subnormal: a bit of the fraction.
    normal = (exponents + 127).clamp(min=0) << 23
    subnormal = torch.ones_like(exponents) << (exponents + 149).clamp(0, 22)
    return torch.where(exponents >= -126, normal, subnormal).view(torch.float32)
