"""The twin of what the native core does with rows of tokens between products, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin.arguments import require_array

_Floats = NDArray[np.float32]


def norm_rows(
    x: _Floats,
    weight: _Floats | None,
    bias: _Floats | None,
    centred: bool,
    eps: float,
    out: _Floats,
) -> None:
    """Out = x [rows, columns], normed, times `weight` and plus `bias` [columns]."""
    require_array("x", x, np.float32, dimensions=2)
    require_array("out", out, np.float32, writable=True, dimensions=2)
    for name, values in (("weight", weight), ("bias", bias)):
        _require_row(name, values, x.shape[1])
    _require_shape("out", out, x.shape)
    mean = x.mean(axis=1, keepdims=True, dtype=np.float64) if centred else np.zeros((len(x), 1))
    out[:] = (x - mean.astype(np.float32)) * _inverse_deviation(x - mean, eps)
    if weight is not None:
        out *= weight
    if bias is not None:
        out += bias


def place_heads(
    x: _Floats,
    columns: int,
    weight: _Floats | None,
    eps: float,
    cos: _Floats | None,
    sin: _Floats | None,
    out: _Floats,
) -> None:
    """Out [heads, tokens, columns] = the heads of x [tokens, heads * columns], normed, turned."""
    require_array("x", x, np.float32, dimensions=2)
    require_array("out", out, np.float32, writable=True)
    if columns < 1:
        raise ValueError(f"columns is {columns}")
    if x.shape[1] % columns:
        raise ValueError(
            f"x has rows of {x.shape[1]} values; whole heads of {columns} were expected"
        )
    _require_row("weight", weight, columns)
    angles = [np.zeros((0, 0), np.float32) if of is None else of for of in (cos, sin)]
    for name, of in zip(("cos", "sin"), angles, strict=True):
        require_array(name, of, np.float32, dimensions=2)
    _require_shape("sin", angles[1], angles[0].shape)
    turned, pairs = angles[0].shape
    if turned not in (0, len(x)):
        raise ValueError(f"a column of cos has {turned} values; {len(x)} were expected")
    if pairs > columns // 2:
        raise ValueError(f"cos has {pairs} pairs; a head has {columns // 2}")
    if out.size != x.size:
        raise ValueError(f"out has {out.size} values; {x.size} were expected")
    heads = x.reshape(len(x), -1, columns).transpose(1, 0, 2)
    if weight is not None:
        heads = heads * _inverse_deviation(heads.astype(np.float64), eps) * weight
    placed = out.reshape(heads.shape)
    placed[:] = heads
    if turned:
        first, second = heads[..., :pairs], heads[..., pairs : 2 * pairs]
        placed[..., :pairs] = first * angles[0] - second * angles[1]
        placed[..., pairs : 2 * pairs] = second * angles[0] + first * angles[1]


@np.errstate(invalid="ignore", over="ignore")  # damaged weights give damaged numbers
def gate_rows(
    gate: _Floats,
    up: _Floats | None,
    slope: float,
    limit: float,
    up_offset: float,
    out: _Floats,
) -> None:
    """Out [rows, columns] = gate * sigmoid(slope * gate) * (up + up_offset), within a limit."""
    require_array("out", out, np.float32, writable=True, dimensions=2)
    for name, rows in (("gate", gate), ("up", up)):
        if rows is None:
            continue
        if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.ndim != 2:
            raise TypeError(f"{name} must be a two-dimensional array of float32")
        _require_shape(name, rows, out.shape)
        if rows.shape[1] > 1 and rows.strides[1] != rows.itemsize:
            raise ValueError(f"{name}'s columns must follow one another")
    most = np.float32(limit)
    within = np.minimum(gate, most) if limit else gate
    out[:] = within * sigmoid(np.float32(slope) * within)
    if up is not None:
        out *= (np.clip(up, -most, most) if limit else up) + np.float32(up_offset)


_BEYOND = (-0.0241925066, 0.179385271, -0.519498896, 0.652505806, -0.205663021, 0.279363377,
           0.136125574, 0.00197439888)  # fmt: skip
"""Of the share of the normal distribution beyond |x|, divided by its density: the coefficients of
1 / (1 + 0.4 |x|), the highest power first."""


@np.errstate(invalid="ignore", over="ignore")  # damaged weights give damaged numbers
def gelu(x: _Floats, exact: bool, out: _Floats) -> None:
    """Out [n] = x times the share of the normal distribution below it, or what is near that."""
    require_array("x", x, np.float32)
    require_array("out", out, np.float32, writable=True)
    if out.size != x.size:
        raise ValueError(f"out has {out.size} values; {x.size} were expected")
    if not exact:
        angles = np.float32(0.044715) * x * x * x + x
        np.multiply(x, sigmoid(angles * np.float32(1.59576912)), out=out)
        return
    near = np.float32(1) / (np.float32(1) + np.float32(0.4) * np.abs(x))
    beyond = np.zeros_like(x)
    for coefficient in _BEYOND:
        beyond = beyond * near + np.float32(coefficient)
    beyond *= np.exp(np.float32(-0.5) * x * x)
    np.multiply(x, np.where(x < 0, beyond, np.float32(1) - beyond), out=out)


def add_shares(rows: _Floats, weights: _Floats, ids: NDArray[np.int32], out: _Floats) -> None:
    """Row ids[i] of `out` += weights[i] * row i of `rows`, in order of i."""
    require_array("rows", rows, np.float32, dimensions=2)
    require_array("weights", weights, np.float32)
    require_array("ids", ids, np.int32)
    require_array("out", out, np.float32, writable=True, dimensions=2)
    for name, values in (("weights", weights), ("ids", ids)):
        if len(values) != len(rows):
            raise ValueError(f"{name} has {len(values)} values; {len(rows)} were expected")
    if out.shape[1] != rows.shape[1]:
        raise ValueError(f"a row of out has {out.shape[1]} values; {rows.shape[1]} were expected")
    for number in ids.tolist():
        if not 0 <= number < len(out):
            raise IndexError(f"id {number} of {len(out)} rows")
    for number, weight, row in zip(ids.tolist(), weights, rows, strict=True):
        out[number] += weight * row


def sigmoid(x: _Floats) -> _Floats:
    """1 / (1 + e^-x) of each, of a power that is at most 1."""
    power: _Floats = np.exp(-np.abs(x))
    shares: _Floats = np.where(x < 0, power, np.float32(1)) / (np.float32(1) + power)
    return shares


def _inverse_deviation(rest: NDArray[np.float64], eps: float) -> _Floats:
    """1 / sqrt(the mean of squares plus `eps`) of each row, kept as a dimension of 1."""
    squares = np.square(rest, dtype=np.float64).mean(axis=-1, keepdims=True)
    inverse: _Floats = (1 / np.sqrt(squares + eps)).astype(np.float32)
    return inverse


def _require_row(name: str, values: _Floats | None, columns: int) -> None:
    if values is None:
        return
    require_array(name, values, np.float32)
    if len(values) not in (0, columns):
        raise ValueError(f"{name} has {len(values)} values; {columns} were expected")


def _require_shape(name: str, array: _Floats, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} is {list(array.shape)}; {list(shape)} was expected")
