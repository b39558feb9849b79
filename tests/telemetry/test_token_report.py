"""A token's numbers, an answer's sums and the text of `--stats`, by hand."""

from __future__ import annotations

import dataclasses
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flashllm.options import KvSelection
from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import NO_COST, decode_summary, merged_summary
from flashllm.telemetry.device_rates import PAGE_CACHE, UNKNOWN, DeviceRates
from flashllm.telemetry.formatting import format_split
from flashllm.telemetry.neuron_map import NeuronMap
from flashllm.telemetry.token_report import TokenNumbers, answer_numbers, medians, stats_text
from flashllm.units import format_bytes_moved, format_memory, format_number, format_seconds
from tests.support.costs import MS, RATES, UNKNOWN_RATES, WORK, FakeToken, cost, plan
from tests.support.profiles import law
from tests.support.specs import SPEC

KV_A_TOKEN = 2 * SPEC.n_kv_heads * SPEC.head_dim * 2 * SPEC.n_layers
"""Bytes that the keys and values of one token take, in f16."""
FFN = 1000 * SPEC.bundle_bytes
LOADED = 100 * SPEC.bundle_bytes
DRAM_BYTES = 10_000_000 + FFN + LOADED + KV_A_TOKEN


def test_a_token_by_hand() -> None:
    found = TokenNumbers.of(cost(), RATES, plan(), text="x", index=7)
    assert dict(found.parts)["io_exposed"] == 20 * MS
    assert [name for name, _ in found.parts] == list(PARTS)
    # 30 MB in 12 ms are 2.5 GB/s; of 3 GB/s that is 5/6.
    assert found.flash_bytes_per_second == pytest.approx(2.5e9)
    assert found.of_profile == pytest.approx(2.5 / 3)
    assert (found.hit_rate, found.depth_mean, found.read_bytes) == (0.9, 6.0, 100_000)
    assert found.sizes == ((65_536, 300),)
    assert (found.text, found.index, found.rss_bytes) == ("x", 7, 310 << 20)


def test_the_bound_is_the_larger_of_flash_and_dram() -> None:
    # Flash: 30 MB at 3 GB/s are 10 ms of 40; DRAM takes about a millisecond.
    found = TokenNumbers.of(cost(), RATES, plan())
    assert (found.bound_ns, found.binds) == (pytest.approx(10 * MS), "flash")
    assert found.of_bound == pytest.approx(0.25)
    # Without a read DRAM is the bound: what is resident, the neurons used, their keys and values.
    still = TokenNumbers.of(
        cost(bytes_read=0, reads=0, io_busy_ns=0, misses=0, hits=1000), RATES, plan()
    )
    expected_ns = (DRAM_BYTES - LOADED) / 10e9 * 1e9
    assert (still.bound_ns, still.binds) == (pytest.approx(expected_ns), "DRAM")
    assert still.flash_bytes_per_second is None
    assert still.of_profile is None


def test_keys_and_values_of_the_context_are_part_of_the_bound() -> None:
    no_flash = cost(bytes_read=0, reads=0, io_busy_ns=0)
    short = TokenNumbers.of(no_flash, RATES, plan())
    long = TokenNumbers.of(no_flash, RATES, plan(), context_tokens=100)
    assert short.bound_ns is not None
    assert long.bound_ns == pytest.approx(short.bound_ns + 100 * KV_A_TOKEN / 10)


def test_where_every_neuron_is_needed_the_pinned_ones_are_the_hits() -> None:
    assert SPEC.bundles_per_layer == 1024
    found = TokenNumbers.of(cost(hits=0, misses=0), RATES, plan("all", slots=256))
    assert found.hit_rate == 0.25
    all_of_them = SPEC.n_layers * SPEC.bundles_per_layer * SPEC.bundle_bytes
    moved = WORK.dram_bytes(plan("all", slots=256), 0, 0, 0)
    assert moved == pytest.approx(10_000_000 + all_of_them * 1.75 + KV_A_TOKEN)
    assert TokenNumbers.of(cost(), RATES, plan("oracle")).hit_rate == 0.0


@pytest.mark.parametrize(
    "rates",
    [
        UNKNOWN_RATES,
        dataclasses.replace(RATES, dram_bytes_per_second=None),
        dataclasses.replace(RATES, flash_bytes_per_second=None),
        dataclasses.replace(RATES, work=None),
    ],
)
def test_what_is_not_known_is_not_made_up(rates: DeviceRates) -> None:
    found = TokenNumbers.of(cost(), rates, plan())
    assert (found.bound_ns, found.of_bound, found.binds) == (None, None, "")
    assert found.flash_bytes_per_second == pytest.approx(2.5e9)
    if rates.flash_bytes_per_second is None:
        assert found.of_profile is None


def info(**changes: Any) -> Any:
    values = {"spec": SPEC, "activity": None, "bundle_stride_bytes": 1024}
    return SimpleNamespace(**{**values, **changes})


def test_rates_are_those_of_the_profile_at_the_plans_threads() -> None:
    # t = a/32 + S/B with a = 100 us and B = 2 GB/s: 1 KiB take 3.125 us + 0.512 us.
    found = DeviceRates.of(law(100e-6, 2e9), info(), plan(), direct=True)
    assert found.flash_bytes_per_second == pytest.approx(1024 / 3.637e-6, rel=1e-3)
    assert found.dram_bytes_per_second == 8e9
    assert found.origin == "the profile of a device of the tests, 2026-01-01"
    assert found.flash_at(1 << 20) == pytest.approx((1 << 20) / (3.125e-6 + 524.288e-6), rel=1e-3)
    assert found.flash_at(0) == found.flash_bytes_per_second


def test_a_profile_of_direct_reads_says_nothing_of_the_page_cache() -> None:
    found = DeviceRates.of(law(100e-6, 2e9), info(), plan(), direct=False)
    assert (found.flash_bytes_per_second, found.flash, found.origin) == (None, None, PAGE_CACHE)
    assert DeviceRates.of(None, info(), plan(), direct=True).origin == UNKNOWN


def test_rates_of_a_quick_profile_are_called_so() -> None:
    quick = dataclasses.replace(law(100e-6, 2e9), quick=True)
    found = DeviceRates.of(quick, info(), plan(), direct=True)
    assert found.is_quick
    assert found.origin == "a quick profile of a device of the tests, 2026-01-01"
    assert not DeviceRates.of(law(100e-6, 2e9), info(), plan(), direct=True).is_quick
    rates = dataclasses.replace(RATES, profile_name=found.profile_name)
    words = " ".join(stats_text(report(), rates, plan()).split())
    assert "83 % of the quick profile's 3 GB/s" in words
    assert "25 % of what this machine allows, by a quick profile: 10 ms a token" in words


def test_with_an_answers_first_token_its_prompt_was_read() -> None:
    tokens = [FakeToken("a", cost(wall_ns=5_000 * MS)), FakeToken("b", cost())]
    first, second = answer_numbers(tokens, RATES, plan(), {0: 10})
    assert (first.prompt, first.bound_ns, first.text) == (True, None, "a")
    assert second == TokenNumbers.of(
        cost(), RATES, plan(), text="b", index=1, prompt=False, context_tokens=11
    )
    assert answer_numbers(tokens, RATES, plan(), {0: 10}, begin=1) == [second]


def test_an_answer_that_goes_on_has_what_there_was_of_it_in_its_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = [FakeToken("", cost()) for _ in range(5)]
    contexts: list[float] = []
    monkeypatch.setattr(
        DeviceRates, "bound", lambda *arguments: contexts.append(arguments[2].context_tokens)
    )
    numbers = answer_numbers(tokens, RATES, plan(), {0: 10, 3: 13})
    assert [token.index for token in numbers if token.prompt] == [0, 3]
    assert contexts == [11, 12, 14]


def test_medians_are_over_decoded_tokens() -> None:
    costs = [cost(wall_ns=ms * MS, bytes_read=ms * 1000) for ms in (5000, 40, 60, 50)]
    numbers = answer_numbers([FakeToken("", one) for one in costs], RATES, plan(), {0: 9})
    found = medians(numbers)
    assert (found["wall_ns"], found["bytes_read"], found["ffn"]) == (50 * MS, 50_000, 10 * MS)
    assert medians(numbers[:1]) == {}


def report(count: int = 2, **prefill: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": 412,
        "tokens": list(range(1 + count)),
        "reasoning_tokens": 0,
        "prefill": {"wall_ns": 2_100 * MS, "bytes_read": 812_000_000, **prefill},
        "decode": decode_summary([cost() for _ in range(count)]),
        "memory": {"rss_peak_bytes": 320 << 20},
    }


def test_answers_that_see_few_keys_say_so() -> None:
    seen = [cost(kv_tokens=800, kv_seen=40, kv_recall=0.9), cost(kv_tokens=1200, kv_seen=160)]
    lossy = dataclasses.replace(plan(), kv_selection=KvSelection("infinigen"))
    found = report() | {"decode": decode_summary(seen)}
    words = " ".join(stats_text(found, RATES, lossy).split())
    assert "keys 10.0 % of keys and values seen, by infinigen (lossy); recall 0.900" in words
    assert "recall" not in stats_text(report(), RATES, lossy)
    assert "keys" not in stats_text(found, RATES, plan())
    merged = merged_summary(decode_summary(seen[:1]), decode_summary(seen[1:]))
    for name in ("kv_share", "kv_recall", "kv_recalls", "kv_seen", "kv_tokens"):
        assert merged[name] == found["decode"][name]
    # An answer that an earlier version began knows nothing of it.
    before = {name: value for name, value in decode_summary([]).items() if "kv" not in name}
    assert merged_summary(before, found["decode"])["kv_share"] == 0.1


def test_stats_say_what_the_report_says() -> None:
    lines = stats_text(report(reused_tokens=300), RATES, plan()).splitlines()
    assert lines == [
        "prompt   412 tokens in 2.1 s, 812 MB read; 300 of them were in the cache",
        "answer   3 tokens; 2 decoded in 80 ms: 25 a second, 40 ms each",
        "time     waiting for flash 50 %, feed-forward 25 %, attention 12 %, managing",
        "         slots 8 %, head 5 %",
        "flash    30 MB a token in 300 reads of 100 kB, 6.0 at once; 2.5 GB/s, 83 % of",
        "         the profile's 3 GB/s",
        "in DRAM  90.0 % of the neurons that tokens needed",
        "bound    25 % of what this machine allows: 10 ms a token, by flash",
        "memory   at most 320 of 512 MiB",
        "         slots 200, interpreter 100, reserve 40, prefill 20, attention 16, kv",
        "         12, embeddings 8, predictors 4 MiB",
    ]


def test_stats_say_what_experts_of_relu_left_unused() -> None:
    found = report()
    assert "experts" not in stats_text(found, RATES, plan())
    found["decode"] |= {"neurons": 1000, "neurons_silent": 700}
    words = " ".join(stats_text(found, RATES, plan()).split())
    assert "experts 70.0% of their neurons were zero; 53.3% of their bytes were of use" in words


def test_stats_say_that_the_end_was_decoded_too() -> None:
    ended = report()
    ended["tokens"].pop()
    assert "answer   2 tokens; with its end 2 decoded in 80 ms:" in stats_text(ended, RATES, plan())


def test_stats_without_a_profile_say_how_to_get_one() -> None:
    text = stats_text(report(), UNKNOWN_RATES, plan())
    words = " ".join(text.split())
    assert "2.5 GB/s, what it allows is unknown: run `flashllm bench io --quick`" in words
    assert "bound    unknown: run `flashllm bench io --quick`" in text
    flash_alone = dataclasses.replace(RATES, dram_bytes_per_second=None)
    assert "bound    unknown: the profile knows flash alone" in stats_text(
        report(), flash_alone, plan()
    )


def test_stats_of_an_answer_without_decoded_tokens() -> None:
    reasoned = report() | {"reasoning_tokens": 2}
    assert "answer   3 tokens, 2 of them reasoning; 2 decoded" in stats_text(
        reasoned, RATES, plan()
    )
    lines = stats_text(report(count=0), RATES, plan()).splitlines()
    assert [line[:9].strip() for line in lines] == ["prompt", "answer", "memory", "", ""]
    assert lines[1] == "answer   1 token"


def test_what_the_engine_says_can_be_sent_to_another_process() -> None:
    rates = DeviceRates.of(law(100e-6, 2e9), info(), plan(), direct=True)
    assert pickle.loads(pickle.dumps(rates)) == rates
    found = NeuronMap.of([(np.ones(4, dtype=np.bool_),) * 3])
    assert pickle.loads(pickle.dumps(found)).states() == found.states()


def test_tokens_of_which_nothing_was_measured_have_no_shares() -> None:
    found = TokenNumbers.of(NO_COST, RATES, plan())
    assert (found.flash_bytes_per_second, found.of_profile, found.of_bound) == (None, None, None)


def test_the_split_is_in_a_unit_that_fits_its_parts() -> None:
    small = dataclasses.replace(plan(), ceiling_bytes=64 << 30)
    assert format_split(small)[0][0] == ("slots", "200")
    large = dataclasses.replace(small, split={**small.split, "slots": 48 << 30, "kv": 0})
    words, unit = format_split(large)
    assert (words[0], words[1], unit) == (("slots", "48.0"), ("interpreter", "0.1"), "GiB")
    assert "kv" not in dict(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (format_seconds(999_400), "999 us"),
        (format_seconds(999_600_000), "1 s"),
        (format_seconds(182_400_000), "182 ms"),
        (format_seconds(1234 * 10**9), "1,234 s"),
        (format_number(1710.4), "1,710"),
        (format_number(0.02974), "0.0297"),
        (format_number(999.4), "999"),
        (format_number(99.6, digits=2), "100"),
        (format_bytes_moved(0), "0 B"),
        (format_bytes_moved(999_499), "999 kB"),
        (format_bytes_moved(11_840_000), "11.8 MB"),
        (format_bytes_moved(1_234e9), "1,234 GB"),
        (format_memory(310 << 20, 512 << 20), "310 of 512 MiB"),
        (format_memory(310 << 20, 15 << 30), "310 MiB of 15.0 GiB"),
        (format_memory(5 << 30, 16 << 30), "5.0 of 16.0 GiB"),
    ],
)
def test_figures_are_short(words: str, expected: str) -> None:
    assert words == expected
