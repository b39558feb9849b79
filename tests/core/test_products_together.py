"""What one call does of what several calls do: the same bits, in both cores."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flashllm._core as native_core
from flashllm.core.numpy_twin import kernels as numpy_core
from tests.support.encodings import encode, nbytes_of

Make = Callable[..., Any]
ROUTING: dict[str, Any] = {
    "per_token": 3, "sigmoid": False, "groups": 1, "groups_kept": 1, "renormalise": True,
    "sum_offset": 0.0, "weight_scale": 1.5,
}  # fmt: skip


def core_of(kernels: Any) -> ModuleType:
    """The core whose kernels these are."""
    return numpy_core if kernels.isa == "numpy" else native_core


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("vectors", [0, 1, 2, 9])
@pytest.mark.parametrize("columns", [7, 96, 1000])
def test_matrices_with_the_same_vectors_get_the_bits_of_each_alone(
    make_kernels: Make, dtype: str, columns: int, vectors: int
) -> None:
    """With and without a bias, of matrices of unlike heights, one of them empty."""
    heights = (64, 0, 320, 32)
    rows = [
        encode(normal(count, columns, seed=count), dtype) if count else np.empty(0, np.uint8)
        for count in heights
    ]
    biases = [normal(64, seed=5), None, None, normal(32, seed=6)]
    x = normal(vectors, columns, seed=1)
    for threads in (1, 3):
        kernels = make_kernels(threads)
        tiles = [one.copy() for one in rows]
        is_tiled = {kernels.tile_matrix(one, dtype, columns) for one in tiles} == {True}
        for matrices, tiled in ((rows, False), (tiles, is_tiled)):
            outs = [np.full((vectors, count), np.nan, np.float32) for count in heights]
            kernels.matmul_several(matrices, dtype, biases, x, outs, tiled)
            for one, bias, found in zip(rows, biases, outs, strict=True):
                expected = np.full(found.shape, np.nan, np.float32)
                kernels.matmul(one, dtype, x, expected)
                assert np.array_equal(found, expected if bias is None else expected + bias)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"biases": [None]}, ValueError),
        ({"biases": [np.zeros(7, np.float32), None]}, ValueError),
        ({"outs": [np.zeros((1, 8), np.float32)]}, ValueError),
        ({"outs": [np.zeros((2, 8), np.float32), np.zeros((1, 4), np.float32)]}, ValueError),
        ({"outs": [np.zeros((1, 8), np.float32), np.zeros((1, 5), np.float32)]}, ValueError),
        ({"x": np.zeros((1, 4), np.float32)}, ValueError),
        ({"dtype": "f128"}, ValueError),
        ({"tiled": True}, ValueError),
        ({"rows": [np.zeros(256, np.int8), np.zeros(128, np.int8)]}, TypeError),
    ],
)
def test_matrices_that_do_not_fit_together_raise(
    make_kernels: Make, changes: dict[str, Any], error: type[Exception]
) -> None:
    arguments: dict[str, Any] = {
        "rows": [encode(normal(8, 8), "f32"), encode(normal(4, 8), "f32")],
        "dtype": "f32",
        "biases": [None, np.zeros(4, np.float32)],
        "x": normal(1, 8),
        "outs": [np.zeros((1, 8), np.float32), np.zeros((1, 4), np.float32)],
        "tiled": False,
    }
    make_kernels().matmul_several(**arguments)
    with pytest.raises(error):
        make_kernels().matmul_several(**(arguments | changes))


@pytest.mark.parametrize("has_biases", [False, True])
@pytest.mark.parametrize(("width", "neurons"), [(7, 3), (96, 40), (512, 300)])
def test_experts_have_the_bits_of_their_steps(
    make_kernels: Make, dtype: str, width: int, neurons: int, has_biases: bool
) -> None:
    gate_up = encode(normal(5 * 2 * neurons, width), dtype).reshape(5, -1)
    down = encode(normal(5 * width, neurons, seed=1), dtype).reshape(5, -1)
    biases = normal(5, 2 * neurons + width, seed=2)
    parts = [gate_up, down, biases.view(np.uint8)] if has_biases else [gate_up, down]
    bundles = np.pad(np.hstack(parts), ((0, 0), (0, 3)))
    data, begins = bundles.reshape(-1), np.array([3, 0, 3, 1], np.int64) * bundles.shape[1]
    gates = 1.7, 2.5, 1.0
    for x in (normal(4, width, seed=3), normal(1, width, seed=3)):
        kernels = make_kernels(2)
        both, out = (np.full((4, n), np.nan, np.float32) for n in (2 * neurons, width))
        kernels.apply_experts(data, begins, dtype, has_biases, *gates, x, both, out)
        steps, hidden = np.empty_like(both), np.empty((4, neurons), np.float32)
        kernels.matvec_each(data, begins, dtype, x, steps)
        if has_biases:
            steps += biases[[3, 0, 3, 1], : 2 * neurons]
        core_of(kernels).gate_rows(steps[:, :neurons], steps[:, neurons:], *gates, hidden)
        expected = np.empty_like(out)
        kernels.matvec_each(data, begins + gate_up.shape[1], dtype, hidden, expected)
        if has_biases:
            expected += biases[[3, 0, 3, 1], 2 * neurons :]
        assert np.array_equal(out, expected)
        shares, total = normal(4, seed=5), normal(width, seed=6)
        added = total.copy()
        kernels.add_shares(expected, shares, np.zeros(4, np.int32), added[None])
        kernels.apply_experts(data, begins, dtype, has_biases, *gates, x, both, out, shares, total)
        assert np.array_equal(total, added)
    none = [np.empty((0, n), np.float32) for n in (2 * neurons, width)]
    kernels.apply_experts(data, begins[:0], dtype, has_biases, *gates, x, *none)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"begins": np.array([0, -1])}, IndexError),
        ({"begins": np.array([0, 481])}, IndexError),
        ({"begins": np.array([0, 2**62])}, IndexError),
        ({"begins": np.array([0])}, ValueError),
        ({"has_biases": True, "begins": np.array([0, 480])}, IndexError),
        ({"x": np.ones((3, 8), np.float32)}, ValueError),
        ({"room": np.ones((2, 11), np.float32)}, ValueError),
        ({"room": np.ones((1, 10), np.float32)}, ValueError),
        ({"room": np.ones((2, 12), np.float32)}, IndexError),
        ({"out": np.ones((2, 9), np.float32)}, ValueError),
        ({"out": np.ones((3, 8), np.float32)}, ValueError),
        ({"weights": np.ones(3, np.float32), "total": np.ones(8, np.float32)}, ValueError),
        ({"weights": np.ones(2, np.float32), "total": np.ones(9, np.float32)}, ValueError),
        ({"weights": np.ones(2, np.float32)}, ValueError),
        ({"dtype": "f128"}, ValueError),
    ],
)
def test_experts_that_do_not_fit_raise(
    make_kernels: Make, changes: dict[str, Any], error: type[Exception]
) -> None:
    """Two experts of five neurons for a width of eight, of 480 bytes, the last at the end."""
    arguments: dict[str, Any] = {
        "data": np.zeros(960, np.uint8),
        "begins": np.array([0, 480]),
        "dtype": "f32",
        "has_biases": False,
        "slope": 1.0,
        "limit": 0.0,
        "up_offset": 0.0,
        "x": np.ones((1, 8), np.float32),
        "room": np.ones((2, 10), np.float32),
        "out": np.ones((2, 8), np.float32),
    }
    make_kernels().apply_experts(**arguments)
    with pytest.raises(error):
        make_kernels().apply_experts(**(arguments | changes))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_choice_bias", [False, True])
def test_a_route_has_the_weights_that_are_not_zero(
    make_kernels: Make, dtype: str, with_bias: bool, with_choice_bias: bool
) -> None:
    """Also where scores are so small that fewer than wanted have a weight."""
    rows, kernels = encode(normal(40, 96), dtype), make_kernels(2)
    bias = normal(40, seed=1) if with_bias else None
    choice_bias = normal(40, seed=2) if with_choice_bias else None
    for x in (normal(96, seed=3), 1e3 * normal(96, seed=4)):
        logits, weights = np.empty((1, 40), np.float32), np.empty((1, 40), np.float32)
        kernels.matmul(rows, dtype, x[None], logits)
        if bias is not None:
            logits += bias
        core_of(kernels).expert_weights(logits, choice_bias, *ROUTING.values(), weights)
        ids, own = np.full(3, -7, np.int32), np.full(3, np.nan, np.float32)
        count = kernels.route(rows, dtype, bias, choice_bias, *ROUTING.values(), x, ids, own)
        chosen = np.flatnonzero(weights[0])
        assert np.array_equal(ids[:count], chosen)
        assert np.array_equal(own[:count], weights[0, chosen], equal_nan=True)
        assert (ids[count:] == -7).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": np.zeros(9, np.float32)},
        {"choice_bias": np.zeros(9, np.float32)},
        {"per_token": 4},
        {"per_token": -1},
        {"per_token": 11, "ids": np.zeros(11, np.int32), "weights": np.zeros(11, np.float32)},
        {"groups": 3},
        {"ids": np.zeros(2, np.int32)},
        {"weights": np.zeros(4, np.float32)},
        {"x": np.zeros(7, np.float32)},
        {"rows": np.zeros(nbytes_of("f32", 8) * 10 - 1, np.uint8)},
        {"dtype": "f128"},
    ],
)
def test_a_router_that_does_not_fit_raises(make_kernels: Make, changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = ROUTING | {
        "rows": encode(normal(10, 8), "f32"),
        "dtype": "f32",
        "bias": None,
        "choice_bias": None,
        "x": normal(8),
        "ids": np.zeros(3, np.int32),
        "weights": np.zeros(3, np.float32),
    }
    make_kernels().route(**arguments)
    with pytest.raises(ValueError):
        make_kernels().route(**(arguments | changes))


def projected(encoding: str, heads: int, **changes: Any) -> dict[str, Any]:
    """Of six heads of 40 columns, at position 7 of a cache of 9."""
    columns = 40
    cache = encode(normal(heads * 9, columns, seed=1), encoding)
    return {
        "query": normal(6 * columns, seed=2),
        "key": normal(heads * columns, seed=3),
        "value": normal(heads * columns, seed=4),
        "query_norm": None,
        "key_norm": None,
        "eps": 1e-5,
        "cos": None,
        "sin": None,
        "keys": cache.copy(),
        "values": encode(normal(heads * 9, columns, seed=8), encoding),
        "dtype": encoding,
        "columns": columns,
        "kv_heads": heads,
        "first": 0,
        "position": 7,
        "scale": 0.3,
        "out": np.full(6 * columns, np.nan, np.float32),
        "sinks": None,
    } | changes


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"query_norm": normal(40, seed=5), "key_norm": normal(40, seed=6), "first": 3},
        {"cos": np.cos(normal(20)), "sin": np.sin(normal(20)), "sinks": normal(6, seed=7)},
        {"cos": np.cos(normal(9)), "sin": np.sin(normal(9)), "key_norm": normal(40, seed=6)},
    ],
)
def test_a_projected_token_has_the_bits_of_its_steps(
    make_kernels: Make, dtype: str, kv_heads: int, changes: dict[str, Any]
) -> None:
    task, kernels = projected(dtype, kv_heads, **changes), make_kernels(2)
    keys, values = task["keys"].copy(), task["values"].copy()
    kernels.attend_projected(**task)
    angles = [None if task[name] is None else task[name][None] for name in ("cos", "sin")]
    query, key = np.empty_like(task["query"]), np.empty_like(task["key"])
    for name, placed in (("query", query), ("key", key)):
        norm = task[f"{name}_norm"]
        kernels.place_heads(task[name][None], 40, norm, task["eps"], *angles, placed)
    kernels.write_head_rows(key, dtype, 40, kv_heads, 7, keys)
    kernels.write_head_rows(task["value"], dtype, 40, kv_heads, 7, values)
    expected, seen = np.empty_like(query), (task["first"], 8)
    kernels.attend(query, keys, values, dtype, 40, kv_heads, *seen, 0.3, expected, task["sinks"])
    assert np.array_equal(task["keys"], keys)
    assert np.array_equal(task["values"], values)
    assert np.array_equal(task["out"], expected)


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize(
    ("number", "error"), [(np.nan, ValueError), (np.inf, ValueError), (1e38, OverflowError)]
)
def test_a_row_that_cannot_be_written_is_named(
    make_kernels: Make, name: str, number: float, error: type[Exception]
) -> None:
    task = projected("f16", 2)
    task[name][50] = number
    with pytest.raises(error, match=rf"^{name}: "):
        make_kernels().attend_projected(**task)


@pytest.mark.parametrize(
    "changes",
    [
        {"position": 9},
        {"position": -1},
        {"first": 8},
        {"first": -1},
        {"query": normal(6 * 40 - 1)},
        {"key": normal(40)},
        {"value": normal(3 * 40)},
        {"key_norm": normal(39)},
        {"cos": normal(20)},
        {"cos": normal(21), "sin": normal(21)},
        {"columns": 0},
        {"kv_heads": 4},
        {"values": np.zeros(7, np.uint8)},
        {"out": normal(7)},
        {"sinks": normal(7)},
        {"dtype": "f128"},
    ],
)
def test_projections_that_do_not_fit_raise(make_kernels: Make, changes: dict[str, Any]) -> None:
    make_kernels().attend_projected(**projected("f32", 2))
    with pytest.raises((ValueError, IndexError, OverflowError)):
        make_kernels().attend_projected(**projected("f32", 2, **changes))


def test_closed_kernels_do_none_of_it(make_kernels: Make) -> None:
    kernels, rows = make_kernels(), encode(normal(10, 8), "f32")
    kernels.close()
    ids, weights = np.zeros(3, np.int32), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="closed"):
        kernels.attend_projected(**projected("f32", 2))
    with pytest.raises(ValueError, match="closed"):
        kernels.matmul_several([rows], "f32", [None], normal(1, 8), [np.empty((1, 10), "f4")])
    with pytest.raises(ValueError, match="closed"):
        kernels.route(rows, "f32", None, None, *ROUTING.values(), normal(8), ids, weights)
    room, out = np.empty((1, 2), np.float32), np.empty((1, 8), np.float32)
    begins = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="closed"):
        kernels.apply_experts(rows, begins, "f32", False, 1.0, 0.0, 0.0, normal(1, 8), room, out)
