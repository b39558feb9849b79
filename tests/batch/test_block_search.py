"""The search for the number of rows: what is tried, what is chosen, what is backed off from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashllm.batch import block_search
from flashllm.batch.block_search import Trial, find_block
from flashllm.engine.local import open_model
from flashllm.errors import MemoryCeilingTooSmall

CEILING = MemoryCeilingTooSmall("too small\nby much", 1)


def search(
    monkeypatch: pytest.MonkeyPatch,
    speed: Callable[[int], float],
    most: int = 100,
    fits: int = 1000,
    pages: bool = False,
    stop_after: int = 1000,
) -> tuple[int, list[Trial]]:
    @contextlib.contextmanager
    def opened(rows: int, on_flash: bool) -> Iterator[Any]:
        if rows > fits and not (on_flash and pages):
            raise CEILING
        yield SimpleNamespace()

    monkeypatch.setattr(
        block_search, "tokens_per_second", lambda _model, _ids, _n, rows: speed(rows)
    )
    trials: list[Trial] = []
    found = find_block(opened, [[1]], 8, most, lambda: len(trials) >= stop_after, trials.append)
    return found, trials


@pytest.mark.parametrize(
    ("speed", "options", "expected", "tried"),
    [
        (lambda n: n, {}, 82, [1, 2, 4, 8, 16, 32, 64, 82]),
        (lambda n: n, {"most": 1}, 1, [1]),
        (lambda n: n, {"fits": 11}, 8, [1, 2, 4, 8, 16, 12]),
        (lambda n: n, {"fits": 13}, 12, [1, 2, 4, 8, 16, 12]),
        (lambda n: -abs(n - 6.0) + 100, {}, 1, [1, 2, 4, 64]),
        (lambda n: n if n > 20 else 8, {}, 82, [1, 2, 4, 64, 82]),
        (lambda n: n if n > 20 else 8, {"fits": 40}, 32, [1, 2, 4, 64, 32, 64, 48]),
        # Rows that do not fit go with a part of keys and values on flash, where that gains.
        (lambda n: n, {"fits": 11, "pages": True}, 82, [1, 2, 4, 8, 16, 32, 64, 82]),
        (
            lambda n: n if 20 < n < 70 else 8,
            {"fits": 40, "pages": True, "most": 1000},
            64,
            [1, 2, 4, 512, 256, 128, 64, 32, 64, 128, 96],
        ),
        (
            lambda n: n if 20 < n < 40 else 8,
            {"fits": 40, "pages": True, "most": 1000},
            32,
            [1, 2, 4, 512, 256, 128, 64, 32, 64, 48],
        ),
        (lambda n: n if n > 20 else 8, {"fits": 10}, 1, [1, 2, 4, 64, 32, 16, 8]),
        (lambda n: n if n != 2 else 0.5, {}, 82, [1, 2, 4, 8, 16, 32, 64, 82]),
        (lambda n: min(n, 4), {}, 4, [1, 2, 4, 8, 16, 64, 6]),
        (lambda n: n if n < 7 else 1, {}, 6, [1, 2, 4, 8, 16, 64, 6]),
        (lambda n: n, {"stop_after": 2}, 2, [1, 2]),
    ],
)
def test_numbers_are_doubled_while_that_gains(
    monkeypatch: pytest.MonkeyPatch,
    speed: Callable[[int], float],
    options: dict[str, int],
    expected: int,
    tried: list[int],
) -> None:
    found, trials = search(monkeypatch, speed, **options)
    assert [trial.rows for trial in trials] == tried
    assert found == expected
    assert all((trial.problem == "too small") == (trial.tokens_per_second == 0) for trial in trials)


def test_one_row_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryCeilingTooSmall):
        search(monkeypatch, float, fits=0)


def test_with_a_model(sparse_model: Path) -> None:
    trials: list[Trial] = []
    found = find_block(
        lambda rows, _: open_model(sparse_model, contexts=rows),
        [[5, 17, 40], [9], list(range(20, 34))],
        8,
        3,
        lambda: False,
        trials.append,
    )
    assert found in (1, 2)
    assert [trial.rows for trial in trials][:2] == [1, 2]
    assert all(trial.tokens_per_second > 0 and not trial.problem for trial in trials)


@pytest.mark.parametrize(
    ("known", "held_tokens", "read_mb", "expected"),
    [
        (None, 100, 4, 1 + 2.5),  # 6 MB that are missing at 4 MB in 10/6 s
        (None, 50, 4, 1 + 5 / 12),  # of 5 MB that half a context has, 1 is missing
        (None, 30, 4, 1),
        (None, 200, 4, 1 + 2.5),  # a context has no more than all of it
        (None, 100, 0, 1),  # no rate is known
        (12e6, 100, 4, 1.5),
        (12e6, 100, 0, 1.5),
    ],
)
def test_pages_on_flash_take_their_time(
    monkeypatch: pytest.MonkeyPatch,
    known: float | None,
    held_tokens: int,
    read_mb: float,
    expected: float,
) -> None:
    """Short trials read none of them: they are told with what a step reads at the end."""
    clock = iter(range(100))
    monkeypatch.setattr(block_search, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    busy_ns = 1e9 * 10 / 6 / 2
    token = SimpleNamespace(cost=SimpleNamespace(bytes_read=read_mb * 5e5, io_busy_ns=busy_ns))
    going = SimpleNamespace(
        pending=token,
        first_of_each=lambda _others: None,
        next_of_each=lambda _others: [token, token],
        close=lambda: None,
    )
    flash = None if known is None else SimpleNamespace(throughput=lambda _size: known)
    model: Any = SimpleNamespace(
        generate=lambda *_ids, **_how: going,
        new_context=object,
        rates=lambda: SimpleNamespace(flash=flash),
    )

    def seconds(pages: Any) -> float:
        model.plan = SimpleNamespace(kv_pages=pages, context=100)
        ids = [[1], list(range(held_tokens - 20))]
        return 2 / block_search.tokens_per_second(model, ids, 20, 2)

    assert seconds(None) == 1
    assert seconds(SimpleNamespace(flash_bytes=0, memory_bytes=10**7)) == 1
    paged = SimpleNamespace(flash_bytes=10**7, memory_bytes=4 * 10**6)
    assert seconds(paged) == pytest.approx(expected)
