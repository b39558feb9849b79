"""Norms, heads, gates and shares of tokens, in both cores, against plain numpy in f64."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Any]
CLOSE = {"rtol": 2e-6, "atol": 2e-6}
WIDTHS = [1, 2, 7, 8, 9, 64, 257, 4096]


def floats(*shape: int, seed: int = 1, scale: float = 1.0) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal(shape) * scale
    return found.astype(np.float32)


def normed(kernels: Any, x: np.ndarray, **changes: Any) -> np.ndarray:
    arguments = {"weight": None, "bias": None, "centred": False, "eps": 1e-5} | changes
    out = np.full(x.shape, 7, np.float32)
    kernels.norm_rows(x, out=out, **arguments)
    return out


def placed(kernels: Any, x: np.ndarray, columns: int, **changes: Any) -> np.ndarray:
    arguments = {"weight": None, "eps": 1e-6, "cos": None, "sin": None} | changes
    out = np.full(x.size, 7, np.float32)
    kernels.place_heads(x, columns, out=out, **arguments)
    return out.reshape(-1, len(x), columns)


def gated(core: Any, gate: np.ndarray, up: np.ndarray | None, **changes: Any) -> np.ndarray:
    arguments = {"slope": 1.0, "limit": 0.0, "up_offset": 0.0} | changes
    out = np.full(gate.shape, 7, np.float32)
    core.gate_rows(gate, up, out=out, **arguments)
    return out


@pytest.mark.parametrize("centred", [False, True])
def test_rows_are_normed(make_kernels: Make, centred: bool) -> None:
    kernels = make_kernels()
    for width in WIDTHS:
        x = floats(5, width, scale=3) + np.float32(0.5)
        weight, bias = floats(2, width, seed=2)
        rest = x.astype(np.float64)
        if centred:
            rest -= rest.mean(axis=1, keepdims=True)
        plain = rest / np.sqrt((rest**2).mean(axis=1, keepdims=True) + 1e-5)
        assert np.allclose(normed(kernels, x, centred=centred), plain, **CLOSE)
        found = normed(kernels, x, centred=centred, weight=weight, bias=bias)
        assert np.allclose(found, plain * weight + bias, **CLOSE)


def test_squares_that_no_f32_holds_are_normed(make_kernels: Make) -> None:
    x = floats(2, 32, scale=1e30)
    with np.errstate(over="raise"):
        plain = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True))
    assert np.allclose(normed(make_kernels(), x), plain, **CLOSE)


def test_what_is_no_number_spoils_its_row_alone(make_kernels: Make) -> None:
    x = floats(3, 32)
    x[1, 5] = np.inf
    found = normed(make_kernels(), x)
    assert np.isnan(found[1, 5])
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_token_has_the_bits_that_it_has_alone(make_kernels: Make, threads: int) -> None:
    kernels, one = make_kernels(threads), make_kernels(1)
    x, weight = floats(100, 8 * 128, scale=2), floats(128)
    angles = floats(100, 48)
    turned = {"weight": weight, "cos": np.cos(angles), "sin": np.sin(angles)}
    many = placed(kernels, x, 128, **turned)
    rows = normed(kernels, x, centred=True)
    shares = floats(300, 1024, seed=3)
    sums = floats(100, 1024, seed=4)
    ids = np.random.default_rng(5).integers(0, 100, 300).astype(np.int32)
    one_by_one = sums.copy()
    kernels.add_shares(shares, floats(300, seed=6), ids, sums)
    for number, weight_of in enumerate(floats(300, seed=6)):
        at = slice(number, number + 1)
        one.add_shares(shares[at], np.array([weight_of]), ids[at], one_by_one)
    assert np.array_equal(sums, one_by_one)
    for token in (0, 41, 99):
        at = slice(token, token + 1)
        own = turned | {"cos": turned["cos"][at], "sin": turned["sin"][at]}
        assert np.array_equal(placed(one, x[at], 128, **own)[:, 0], many[:, token])
        assert np.array_equal(normed(one, x[at], centred=True)[0], rows[token])


def test_heads_are_normed_and_turned(make_kernels: Make) -> None:
    kernels = make_kernels()
    for columns, pairs in ((2, 1), (7, 2), (64, 32), (64, 24), (128, 64)):
        x, weight, angles = (
            floats(3, 4 * columns),
            floats(columns, seed=2),
            floats(3, pairs, seed=3),
        )
        cos, sin = np.cos(angles), np.sin(angles)
        heads = x.astype(np.float64).reshape(3, 4, columns).transpose(1, 0, 2)
        assert np.array_equal(placed(kernels, x, columns), heads.astype(np.float32))
        plain = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 1e-6) * weight
        assert np.allclose(placed(kernels, x, columns, weight=weight), plain, **CLOSE)
        first, second = plain[..., :pairs], plain[..., pairs : 2 * pairs]
        rest = plain[..., 2 * pairs :]
        turned = np.concatenate(
            [first * cos - second * sin, second * cos + first * sin, rest], axis=2
        )
        found = placed(kernels, x, columns, weight=weight, cos=cos, sin=sin)
        assert np.allclose(found, turned, rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 600), st.floats(0.5, 2), st.sampled_from([0.0, 1.0, 7.0]))
def test_gates_let_through(
    core: ModuleType, rows: int, columns: int, slope: float, limit: float
) -> None:
    both = floats(rows, 2 * columns, scale=5)
    gate, up = both[:, :columns], both[:, columns:]
    cut = np.minimum(gate, limit) if limit else gate
    plain = cut / (1 + np.exp(-slope * cut.astype(np.float64)))
    found = gated(core, gate, None, slope=slope, limit=limit)
    assert np.allclose(found, plain, rtol=1e-5, atol=1e-6)
    bounded = np.clip(up, -limit, limit) if limit else up
    found = gated(core, gate, up, slope=slope, limit=limit, up_offset=1.0)
    assert np.allclose(found, plain * (bounded + 1), rtol=1e-5, atol=1e-5)
    assert np.array_equal(gated(core, gate[:1, :1], None)[0, 0], gated(core, gate, None)[0, 0])


def test_far_gates_are_shut_or_open(core: ModuleType) -> None:
    gate = np.array([[-1e30, -200, -88, 0, 88, 200, 1e30, np.nan]], np.float32)
    found = gated(core, gate, None)[0]
    assert np.array_equal(found[[3, 5, 6]], gate[0, [3, 5, 6]])
    assert np.all(np.abs(found[:3]) < 1e-30)
    assert np.isnan(found[7])


def test_wrong_sizes_of_norms(make_kernels: Make) -> None:
    kernels, x, out = make_kernels(), floats(2, 8), np.zeros((2, 8), np.float32)
    for wrong, told in (
        ({"weight": floats(7)}, "weight has 7 values; 8 were expected"),
        ({"bias": floats(9)}, "bias has 9 values; 8 were expected"),
        ({"out": np.zeros((2, 7), np.float32)}, r"out is \[2, 7\]; \[2, 8\] was expected"),
        ({"out": np.zeros((1, 8), np.float32)}, r"out is \[1, 8\]; \[2, 8\] was expected"),
    ):
        arguments = {"weight": None, "bias": None, "centred": False, "eps": 0.0, "out": out}
        with pytest.raises(ValueError, match=told):
            kernels.norm_rows(x, **(arguments | wrong))


def test_wrong_sizes_of_heads(make_kernels: Make) -> None:
    kernels, x, angles = make_kernels(), floats(2, 8), floats(2, 2)
    for wrong, told in (
        ({"columns": 0}, "columns is 0"),
        ({"columns": 3}, "x has rows of 8 values; whole heads of 3 were expected"),
        ({"weight": floats(5)}, "weight has 5 values; 4 were expected"),
        ({"cos": angles, "sin": floats(2, 1)}, r"sin is \[2, 1\]; \[2, 2\] was expected"),
        ({"cos": angles}, r"sin is \[0, 0\]; \[2, 2\] was expected"),
        ({"cos": floats(3, 2), "sin": floats(3, 2)}, "a column of cos has 3 values; 2 were"),
        ({"cos": floats(2, 3), "sin": floats(2, 3)}, "cos has 3 pairs; a head has 2"),
        ({"out": np.zeros(15, np.float32)}, "out has 15 values; 16 were expected"),
    ):
        arguments: dict[str, Any] = {
            "columns": 4, "weight": None, "eps": 0.0, "cos": None, "sin": None,
            "out": np.zeros(16, np.float32),
        }  # fmt: skip
        with pytest.raises(ValueError, match=told):
            kernels.place_heads(x, **(arguments | wrong))


def test_wrong_sizes_of_gates(core: ModuleType) -> None:
    gate = floats(2, 8)
    for wrong, told in (
        ({"gate": floats(2, 7)}, r"gate is \[2, 7\]; \[2, 8\] was expected"),
        ({"up": floats(3, 8)}, r"up is \[3, 8\]; \[2, 8\] was expected"),
        ({"up": floats(2, 16)[:, ::2]}, "up's columns must follow one another"),
    ):
        arguments: dict[str, Any] = {
            "gate": gate, "up": None, "slope": 1.0, "limit": 0.0, "up_offset": 0.0,
            "out": np.zeros((2, 8), np.float32),
        }  # fmt: skip
        with pytest.raises(ValueError, match=told):
            core.gate_rows(**(arguments | wrong))
    with pytest.raises(TypeError):
        core.gate_rows(gate.astype(np.float64), None, 1.0, 0.0, 0.0, np.zeros((2, 8), np.float32))


@pytest.mark.parametrize("exact", [True, False])
def test_gelu_is_that_of_64_bits(core: Any, exact: bool) -> None:
    x = np.concatenate([floats(600, scale=3), np.float32([0, 7, -7, 40, -40, 1e30, -1e30])])
    out = np.full_like(x, 7)
    core.gelu(x, exact, out)
    wide = [float(value) for value in x]
    if exact:
        shares = [math.erfc(-value / math.sqrt(2)) / 2 for value in wide]
    else:
        angles = (math.sqrt(2 / math.pi) * (value + 0.044715 * value**3) for value in wide)
        shares = [(1 + math.tanh(angle)) / 2 for angle in angles]
    plain = np.array([value * share for value, share in zip(wide, shares, strict=True)])
    np.testing.assert_allclose(out, plain, rtol=3e-7, atol=4e-7)


def test_gelu_of_others_is_refused(core: Any) -> None:
    with pytest.raises(ValueError, match="out has 3 values; 4 were expected"):
        core.gelu(floats(4), True, np.zeros(3, np.float32))
    with pytest.raises(TypeError):
        core.gelu(np.zeros(4), True, np.zeros(4, np.float32))


def test_wrong_shares(make_kernels: Make) -> None:
    kernels, rows = make_kernels(), floats(2, 8)
    ids = np.array([0, 2], np.int32)
    for wrong, error, told in (
        ({"weights": floats(3)}, ValueError, "weights has 3 values; 2 were expected"),
        ({"ids": ids[:1]}, ValueError, "ids has 1 values; 2 were expected"),
        ({"out": np.zeros((3, 7), np.float32)}, ValueError, "a row of out has 7 values; 8 were"),
        ({"ids": ids - 1}, IndexError, "id -1 of 3 rows"),
        ({"ids": ids + 1}, IndexError, "id 3 of 3 rows"),
    ):
        arguments: dict[str, Any] = {
            "weights": floats(2), "ids": ids, "out": np.zeros((3, 8), np.float32)
        }  # fmt: skip
        out = (arguments | wrong)["out"]
        with pytest.raises(error, match=told):
            kernels.add_shares(rows, **(arguments | wrong))
        assert not out.any()


def test_closed_kernels_norm_nothing(make_kernels: Make) -> None:
    kernels = make_kernels()
    kernels.close()
    with pytest.raises(ValueError, match="the kernels are closed"):
        normed(kernels, floats(1, 4))
    with pytest.raises(ValueError, match="the kernels are closed"):
        placed(kernels, floats(1, 4), 4)
    with pytest.raises(ValueError, match="the kernels are closed"):
        kernels.add_shares(floats(1, 4), floats(1), np.zeros(1, np.int32), floats(1, 4))
