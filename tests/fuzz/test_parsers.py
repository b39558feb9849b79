"""The fuzz targets of the parsers: what is kept passes, some new inputs do, and a bug is found."""

from __future__ import annotations

import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

from tests.fuzz.parsers.run import TooSlow, fuzz, time_limit
from tests.fuzz.parsers.target import CORPUS, Target, corpus
from tests.fuzz.parsers.targets import TARGETS

PARSED_AS_THEY_ARE = sorted(
    TARGETS.keys() & {path.name for path in CORPUS.iterdir()}
    - {"safetensors_header", "checkpoint_config"}
)  # fmt: skip


@pytest.mark.parametrize("name", PARSED_AS_THEY_ARE)
def test_what_is_kept_gives_a_right_result_or_an_error_of_ours(name: str) -> None:
    for raw in corpus(name):
        TARGETS[name].check(raw)


@pytest.mark.parametrize("name", ["safetensors_header", "checkpoint_config"])
def test_what_is_kept_of_targets_that_take_pairs(name: str) -> None:
    for raw in corpus(name):
        for other in (b"{}", b"") if name == "checkpoint_config" else (0, 8, 33):
            TARGETS[name].check((raw, other))


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - {"chat_template"}))
def test_a_few_changed_inputs(name: str) -> None:
    @hypothesis.settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @hypothesis.given(TARGETS[name].inputs)
    def check(value: object) -> None:
        TARGETS[name].check(value)

    check()


def test_an_input_that_a_parser_fails_at_is_found_and_made_small(tmp_path: Path) -> None:
    def check(raw: bytes) -> None:
        if b"x" in raw:
            raise KeyError(raw)

    target = Target("planted", st.binary(max_size=200), check)
    with pytest.raises(KeyError, match=r"^b'x'"):
        fuzz(target, 60, seed=1, last_input=tmp_path / "last")
    assert (tmp_path / "last").read_bytes() == b"x"


def test_one_that_never_ends_is_found() -> None:
    with pytest.raises(TooSlow, match=r"0\.05 s"), time_limit(0.05):
        time.sleep(20)
    time.sleep(0.1)  # no signal is left over


def test_a_number_of_inputs_is_the_same_each_time() -> None:
    first: list[int] = []
    second: list[int] = []
    for seen in (first, second):
        assert (
            fuzz(Target("counted", st.integers(), seen.append), 60, 1, runs=250).executions == 250
        )
    assert first == second
    assert len(first) == 250


def test_executions_are_counted() -> None:
    seen = []
    done = fuzz(Target("counted", st.integers(), seen.append), 0.2, seed=1)
    assert done.executions == len(seen) > 0
    assert done.seconds >= 0.2
