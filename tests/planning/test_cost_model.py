"""Bytes of a token and their times: sums done by hand, and the paper's Table 2."""

from __future__ import annotations

import dataclasses

import pytest

from flashllm.options import KvDType
from flashllm.planning.activation_stats import assumed
from flashllm.planning.cost_model import (
    OWN,
    Encodings,
    ResidentBytes,
    chunk_seconds,
    dram_bytes_a_token,
    dram_seconds,
    kv_bytes_a_token,
    own_rows_seconds,
    rates_suffice,
)
from tests.planning.test_shape_estimate import OPT_6_7B
from tests.support.profiles import FLAT, RATES, flash_profile
from tests.support.specs import SPEC

GB = 1e9
# GB/s of the paper's machine: one long read, a row, a bundle of two rows.
PAPER = flash_profile(
    {(8 << 10, 32): 1.25 * GB, (16 << 10, 32): 2.25 * GB, (1 << 20, 32): 6.1 * GB}
)
FFN_BYTES = 32 * 16384 * 2 * 4096 * 2


def milliseconds(nbytes: float, read_bytes: int) -> float:
    return 1e3 * PAPER.read_seconds(nbytes / read_bytes, nbytes, 32)


def test_latencies_of_the_papers_table_2() -> None:
    """The five rows, from the paper's bytes and its GB/s; its own figures are 2 to 3 % lower."""
    row, bundle, long = 8 << 10, 16 << 10, 1 << 20
    assert milliseconds(13.4 * GB, long) == pytest.approx(2197, abs=0.5)
    assert milliseconds(6.7 * GB, long) == pytest.approx(1098, abs=0.5)
    assert milliseconds(0.9 * GB, row) == pytest.approx(720, abs=0.5)
    assert milliseconds(0.2 * GB, row) == pytest.approx(160, abs=0.5)
    assert milliseconds(0.2 * GB, bundle) == pytest.approx(89, abs=0.5)


def test_table_2_from_the_shape_and_the_papers_activity() -> None:
    """What a window of five loads is 2.4 % of the neurons: 165 ms by rows, 92 ms by bundles."""
    activity = assumed(OPT_6_7B, "predicted")
    loaded = sum(activity.increment(layer, 5) for layer in range(32)) * 2 * 4096 * 2
    assert loaded == pytest.approx(0.024 * FFN_BYTES, rel=0.005)
    assert milliseconds(loaded, 8 << 10) == pytest.approx(165, abs=1)
    assert milliseconds(loaded, 16 << 10) == pytest.approx(91.6, abs=0.6)
    used = sum(activity.used(layer) for layer in range(32))
    assert used == pytest.approx(0.0964 * 32 * 16384, rel=0.001)
    assert activity.aggregate(0, 5) == pytest.approx(0.241 * 16384, rel=0.005)


def test_resident_bytes_by_hand() -> None:
    found = ResidentBytes.of(SPEC, predictors=17)
    matrices = 4 * 4 * 256 * 256 * 2  # layers x projections, f16
    vectors = 4 * (3 + 4 + 1) * 256 * 4  # q, k, v biases; two norms; down's bias; f32
    ups = 4 * 1024 * 4
    output = 4 * 256 * 4 if SPEC.attention_output_bias else 0
    assert found.attention == matrices + vectors + ups + output
    assert found.head == 4096 * 256 * 2 + 2 * 256 * 4
    assert (found.gate, found.predictors) == (0, 17)


def test_bytes_of_groups_by_hand() -> None:
    """256 columns are eight groups: 272 bytes a row in int8, 144 in int4."""
    spec = dataclasses.replace(SPEC, dtype="int4", resident_dtype="int8")
    plain = ResidentBytes.of(SPEC)
    found = ResidentBytes.of(spec)
    assert plain.attention - found.attention == 4 * 4 * 256 * (512 - 272)
    assert plain.head - found.head == 4096 * (512 - 272)
    assert spec.bundle_bytes == 2 * 144


def test_a_head_of_its_own_is_read_and_the_embeddings_are_not() -> None:
    own = dataclasses.replace(SPEC, tied_head=False)
    assert ResidentBytes.of(own) == ResidentBytes.of(SPEC)


def test_neurons_that_turn_out_to_be_zero_cost_no_down_row() -> None:
    resident = ResidentBytes.of(SPEC)
    plain = dram_bytes_a_token(SPEC, resident, 100, 10, 1024, 0)
    assert (plain.ffn, plain.loaded) == (100 * 1024, 10 * 1024)
    known = dram_bytes_a_token(SPEC, resident, 100, 10, 1024, 0, bundles_active=30)
    assert known.ffn == 100 * 512 + 30 * 512
    assert plain.total - known.total == 70 * 512


@pytest.mark.parametrize(("dtype", "row"), [("f32", 256), ("f16", 128), ("int8", 68)])
def test_keys_and_values_by_hand(dtype: KvDType, row: int) -> None:
    width = 2 * 4 * row
    assert kv_bytes_a_token(SPEC, 100, dtype) == 4 * width * 101
    windowed = dataclasses.replace(SPEC, attention_windows=(0, 16, 0, 16))
    assert kv_bytes_a_token(windowed, 100, dtype) == width * (2 * 100 + 2 * 16 + 4)


def test_seconds_are_bytes_over_rates() -> None:
    moved = dram_bytes_a_token(SPEC, ResidentBytes.of(SPEC, 1000), 100, 10, 1024, 50)
    seconds = dram_seconds(RATES, Encodings.of(SPEC), moved)
    # What is loaded is written while it is read from flash.
    assert seconds.total == pytest.approx((moved.total - moved.loaded) / FLAT)
    slow = dataclasses.replace(RATES, rows_bytes_per_second={"f16": FLAT / 4})
    assert dram_seconds(slow, Encodings.of(SPEC), moved).ffn == pytest.approx(4 * seconds.ffn)


@pytest.mark.parametrize(
    ("dtype", "resident", "predictors"),
    [
        ("f32", "f32", "f16"),
        ("f16", "f16", "f16"),
        ("bf16", "bf16", "f16"),
        ("int4", "int8", "f16"),
        ("int8", "int4", "int8"),
    ],
)
def test_rates_suffice_where_seconds_can_be_computed(
    dtype: str, resident: str, predictors: str
) -> None:
    """Each of the rates is needed: without it there are no seconds, and that is known before."""
    encodings = Encodings(dtype, resident, predictors)
    least = dataclasses.replace(
        RATES,
        dram_bytes_per_second={1: FLAT},
        kernel_bytes_per_second={resident: FLAT, predictors: FLAT},
        rows_bytes_per_second={dtype: FLAT},
    )
    moved = dram_bytes_a_token(SPEC, ResidentBytes.of(SPEC, 1000), 100, 10, 1024, 50)
    assert rates_suffice(RATES, encodings)
    assert rates_suffice(least, encodings)
    assert dram_seconds(least, encodings, moved).total > 0
    lacking = [
        dataclasses.replace(least, dram_bytes_per_second={}),
        dataclasses.replace(least, rows_bytes_per_second={}),
        *(dataclasses.replace(least, kernel_bytes_per_second={
            key: FLAT for key in (resident, predictors) if key != missing
        }) for missing in (resident, predictors)),
    ]  # fmt: skip
    for rates in lacking:
        assert not rates_suffice(rates, encodings)
        with pytest.raises((KeyError, ValueError)):
            dram_seconds(rates, encodings, moved)


def test_a_prompt_needs_a_rate() -> None:
    assert chunk_seconds(RATES, "f16", 1e9, 100) == pytest.approx(1.0)
    bare = dataclasses.replace(RATES, kernel_bytes_per_second={"f16": FLAT})
    assert chunk_seconds(bare, "f16", 1e9, 100) is None


def test_own_rows_take_their_share_at_their_rate() -> None:
    known = RATES.kernel_bytes_per_second | {OWN.format("f16"): 4 * FLAT}
    rates = dataclasses.replace(RATES, kernel_bytes_per_second=known)
    assert own_rows_seconds(rates, "f16", 1e9, 100, 0.1) == pytest.approx(1e10 / FLAT / 4)
    # A layer's rows are in no cache when the next token comes.
    layer = own_rows_seconds(rates, "f16", 1e9, 100, 0.1, by_blocks=False)
    assert layer == pytest.approx(1e10 / FLAT)
    # A profile of before has no such rate: rows from memory are slower than those in caches.
    assert own_rows_seconds(RATES, "f16", 1e9, 100, 0.1) == pytest.approx(1e10 / FLAT)
