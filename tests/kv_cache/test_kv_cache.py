"""Keys and values in each encoding: what is read is what was written, however it got there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from flashllm import core
from flashllm.dtypes import GROUP
from flashllm.engine.loading import load_decoder
from flashllm.errors import Cancelled, MemoryCeilingTooSmall, ModelError, UsageError
from flashllm.flash.raw_tensor import RawTensor
from flashllm.kv_cache.dram import KvCache, Placing
from flashllm.large_arrays import Floats
from flashllm.model.attention import Attention, Span
from flashllm.model.decoder import Decoder
from flashllm.model.linear import Linear, LinearGroup, Norm
from flashllm.model.products import Products
from flashllm.model.rope import Positions
from flashllm.options import KV_DTYPES, KvDType
from flashllm.planning.plan import Plan
from flashllm.spec import Rope
from flashllm.system.processors import THREADS_VARIABLE
from tests.support.specs import SPEC

SHAPE = dataclasses.replace(
    SPEC, n_layers=2, n_heads=12, n_kv_heads=6, head_dim=80, d_model=960, embed_dim=960
)
"""Heads that share, in more than one block, and groups that are not full."""
IDS = np.random.default_rng(3).integers(3, 96, size=90).tolist()


def cache_of(dtype: KvDType, context: int = 64, threads: int = 2) -> KvCache:
    return KvCache(SHAPE, context, dtype, core.Kernels(threads=threads))


TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16}


def rows(tokens: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((6, tokens, 80), np.float32)


def contents(cache: KvCache, layer: int, first: int, end: int) -> torch.Tensor:
    """[2, kv_heads, positions, head_dim], decoded."""
    rows = torch.from_numpy(cache.encoded(layer, first, end).copy())
    if cache.dtype in TORCH_DTYPES:
        return rows.view(TORCH_DTYPES[cache.dtype]).float()
    groups = -(-80 // GROUP)
    scales = rows[..., -2 * groups :].contiguous().view(torch.float16)
    packed = rows[..., : -2 * groups]
    if cache.dtype == "int4":
        packed = packed.unflatten(-1, (-1, GROUP // 2))
        numbers = torch.cat((packed & 15, packed >> 4), dim=-1).to(torch.int8) - 8
    else:
        numbers = packed.view(torch.int8).unflatten(-1, (-1, GROUP))
    return (numbers * scales[..., None].float()).flatten(-2)[..., :80]


def filled(dtype: KvDType, steps: list[int]) -> KvCache:
    """A cache with the same tokens, so many at a time."""
    cache, keys, values = cache_of(dtype), rows(sum(steps), 1), rows(sum(steps), 2)
    for step in steps:
        part = slice(cache.length, cache.length + step)
        for layer in range(2):
            assert cache.append(layer, keys[:, part], values[:, part]) == part.stop
        cache.length += step
    return cache


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_it_holds_what_was_appended(dtype: KvDType) -> None:
    cache = filled(dtype, [30])
    exact = torch.from_numpy(np.stack((rows(30, 1), rows(30, 2))))
    for layer in range(2):
        found = contents(cache, layer, 0, 30)
        error = (found - exact).abs()
        # Half a step: of each value in f16, of the largest of its group in int8.
        bounds = {
            "f32": 0 * exact,
            "f16": (exact.abs() * 2**-11).clamp(min=2**-25),
            "int8": exact.abs().max() / 253,
            "int4": exact.abs().max() / 8,  # a whole step: the largest is -8, and 8 is not there
        }
        assert (error <= bounds[dtype]).all()
        assert torch.equal(contents(cache, layer, 7, 21), found[:, :, 7:21])


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_steps_of_any_size_write_the_same_rows(dtype: KvDType) -> None:
    whole = contents(filled(dtype, [30]), 1, 0, 30)
    for steps in ([1] * 30, [7, 1, 22]):
        assert torch.equal(contents(filled(dtype, steps), 1, 0, 30), whole)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_attention_is_that_of_torch(dtype: KvDType) -> None:
    cache = filled(dtype, [30])
    query = np.random.default_rng(3).standard_normal((12, 80), np.float32)
    for first in (0, 11):
        keys, values = contents(cache, 0, first, 30).double()
        asked = torch.from_numpy(query)[None, :, None].double()
        cache.length = 29
        expected = torch.nn.functional.scaled_dot_product_attention(
            asked,
            keys[None],
            values[None],
            scale=0.1,
            enable_gqa=True,
        )[0, :, 0]
        found = cache.attend(0, query[None], 30 - first if first else 0, 0.1)[0]
        tolerance = 3e-4 if dtype in ("int8", "int4") else 3e-6
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_chunks_of_any_size_attend_alike(dtype: KvDType, window: int) -> None:
    """Bit for bit."""
    generator = np.random.default_rng(4)
    kernels = core.Kernels()
    products, positions = Products(SHAPE, kernels, 64), Positions(Rope(dims=40, theta=1e4))
    norm = Norm("rms", 1e-6, np.linspace(0.5, 2, 80, dtype=np.float32), None, kernels)

    def linear(outputs: int) -> Linear:
        weight = generator.standard_normal((outputs, 960), np.float32) / np.float32(31)
        raw = weight.reshape(-1).view(np.uint8)
        return Linear(RawTensor(raw, "f32", (outputs, 960)), None, products)

    query, key, value, output = (linear(width) for width in (960, 480, 480, 960))
    attention = Attention(
        query, LinearGroup.of(key, value, query), output, query_norm=norm, key_norm=norm,
        norm_whole=False, head_dim=80, scale=80**-0.5, window=window, rotated=True,
        kernels=kernels, sinks=None,
    )  # fmt: skip
    x = generator.standard_normal((40, 960), np.float32)
    found = []
    for steps in ([40], [1] * 40, [13, 1, 26]):
        cache, parts = cache_of(dtype), []
        for step in steps:
            own = x[cache.length : cache.length + step]
            span = Span(cache, step)
            parts.append(attention(own, 0, [span], positions.at([span.positions]).everywhere))
            cache.length += step
        found.append(np.concatenate(parts))
    assert np.array_equal(found[1], found[0])
    assert np.array_equal(found[2], found[0])


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_truncating_forgets_what_came_after(dtype: KvDType) -> None:
    cache, query = filled(dtype, [30]), rows(2, 3).reshape(1, 12, 80)
    cache.truncate(11)
    expected = cache.attend(0, query, 0, 0.1)
    cache.length = 12
    # Other tokens take the places, and the same ones make the cache what it was.
    cache.append(0, rows(18, 8), rows(18, 9))
    cache.length = 11
    assert np.array_equal(cache.attend(0, query, 0, 0.1), expected)
    cache.length = 12
    cache.append(0, rows(30, 1)[:, 12:], rows(30, 2)[:, 12:])
    assert torch.equal(contents(cache, 0, 0, 30), contents(filled(dtype, [30]), 0, 0, 30))
    cache.truncate(0)
    assert cache.length == 0


@pytest.mark.parametrize(("dtype", "value"), [("f16", 70000.0), ("int8", 1e9)])
def test_a_key_that_is_too_large_names_the_way_out(dtype: KvDType, value: float) -> None:
    cache, keys = cache_of(dtype), rows(3, 1)
    keys[2, 1, 5] = value
    with pytest.raises(ModelError, match=rf"layer 1: a key .* {dtype}.*--kv-dtype f32"):
        cache.append(1, keys, rows(3, 2))
    with pytest.raises(ModelError, match="layer 0: a value"):
        cache.append(0, rows(3, 2), keys)
    exact = cache_of("f32")
    exact.append(1, keys, rows(3, 2))
    assert contents(exact, 1, 0, 3)[0, 2, 1, 5] == value


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_what_is_no_number_is_refused(dtype: KvDType) -> None:
    keys = rows(3, 1)
    keys[0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match="overflows f32"):
        cache_of(dtype).append(0, keys, rows(3, 2))


def token_rows(contexts: int, heads: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((contexts, heads * 80), np.float32)


@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_tokens_of_several_contexts_attend_as_each_alone(dtype: KvDType, window: int) -> None:
    lengths = [30, 1, 12, 63]
    together, alone = ([filled(dtype, [length]) for length in lengths] for _ in range(2))
    keys, values, queries = token_rows(4, 6, 5), token_rows(4, 6, 6), token_rows(4, 12, 7)
    sinks = token_rows(1, 1, 8)[0, :12] if window else None
    out = np.empty_like(queries)
    one, *others = together
    one.attend_each(others, 1, (keys, values, queries), window, 0.1, sinks, out)
    for number, cache in enumerate(alone):
        cache.append(1, keys[number].reshape(6, 1, 80), values[number].reshape(6, 1, 80))
        query = queries[number].reshape(1, 12, 80)
        found = cache.attend(1, query, window, 0.1, sinks)
        assert np.array_equal(found.reshape(-1), out[number])
        same = together[number].encoded(1, 0, lengths[number] + 1)
        assert np.array_equal(same, cache.encoded(1, 0, lengths[number] + 1))


def test_what_cannot_be_written_of_several_contexts_says_where() -> None:
    one, other = filled("f16", [3]), filled("f16", [9])
    keys, values, queries = token_rows(2, 6, 5), token_rows(2, 6, 6), token_rows(2, 12, 7)
    out = np.empty_like(queries)
    values[1, 479] = 70000
    with pytest.raises(ModelError, match="layer 1: a value of attention is too large"):
        one.attend_each([other], 1, (keys, values, queries), 0, 0.1, None, out)
    keys[0, 0] = np.nan
    with pytest.raises(ModelError, match="layer 0: a key of attention is no number"):
        one.attend_each([other], 0, (keys, values, queries), 0, 0.1, None, out)
    assert (one.length, other.length) == (3, 9)


def test_what_cannot_be_written_of_a_projected_token_says_where() -> None:
    cache, placing = filled("f16", [3]), Placing(None, None, 0.0, None, None)
    key, value, query = token_rows(1, 6, 5), token_rows(1, 6, 6), token_rows(1, 12, 7)
    value[0, 479] = 70000
    with pytest.raises(ModelError, match="layer 1: a value of attention is too large"):
        cache.attend_projected(1, (key, value, query), placing, 0, 0.1, None)
    key[0, 0] = np.nan
    with pytest.raises(ModelError, match="layer 0: a key of attention is no number"):
        cache.attend_projected(0, (key, value, query), placing, 0, 0.1, None)
    assert cache.length == 3


def greedy(decoder: Decoder, count: int = 30) -> list[int]:
    logits, found = decoder.prefill(IDS[:40]), []
    for _ in range(count):
        found.append(int(np.argmax(logits)))
        logits = decoder.decode(found[-1])
    return found


def opened(directory: Path, dtype: str, **settings: int) -> tuple[Decoder, Plan]:
    decoder, plan, _ = load_decoder(directory, kv_dtype=dtype, **settings)
    return decoder, plan


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_same_tokens_at_every_ceiling_context_and_number_of_threads(
    sparse_model: Path, dtype: KvDType, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = greedy(opened(sparse_model, dtype)[0])
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        opened(sparse_model, dtype, memory=1 << 20)
    least = caught.value.smallest_bytes + (8 << 20)
    for settings in ({"memory": least}, {"window": 1}, {"context": 70}):
        decoder, plan = opened(sparse_model, dtype, **settings)
        assert plan.kv_dtype == decoder.kv_dtype == dtype
        assert greedy(decoder) == expected
    for threads in (1, 3):
        monkeypatch.setenv(THREADS_VARIABLE, str(threads))
        assert greedy(opened(sparse_model, dtype)[0]) == expected


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 2e-3), ("int8", 5e-2)])
def test_logits_are_near_those_of_f32(sparse_model: Path, dtype: KvDType, tolerance: float) -> None:
    exact = opened(sparse_model, "f32")[0].logits(IDS)
    found = opened(sparse_model, dtype)[0].logits(IDS)
    assert 0 < np.abs(found - exact).max() <= tolerance * np.abs(exact).max()


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_a_token_given_up_half_way_leaves_nothing(sparse_model: Path, dtype: KvDType) -> None:
    decoder, _ = opened(sparse_model, dtype)
    decoder.prefill(IDS[:40])
    expected = [decoder.decode(token) for token in IDS[40:44]]
    decoder.prefill(IDS[:40])
    decoder.decode(IDS[40])

    def stop(layer: int) -> None:
        if layer == 2:
            raise Cancelled("stopped on request")

    decoder.before_layer = stop
    with pytest.raises(Cancelled):
        decoder.decode(IDS[50])
    decoder.before_layer = None
    assert decoder.context.length == 41
    for token, logits in zip(IDS[41:44], expected[1:], strict=True):
        assert np.array_equal(decoder.decode(token), logits)


def test_an_encoding_that_there_is_not(sparse_model: Path) -> None:
    with pytest.raises(UsageError, match="--kv-dtype bf16: expected one of f32, f16, int8"):
        opened(sparse_model, "bf16")
