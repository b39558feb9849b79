"""Imports without the garbage collector: it is on again afterwards, whatever happened."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from flashllm.system.imports import gc_paused


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize("freeze", [False, True])
def test_nothing_is_collected_within(freeze: bool) -> None:
    before = gc.get_freeze_count()
    with gc_paused(freeze=freeze):
        assert not gc.isenabled()
    assert gc.isenabled()
    assert (gc.get_freeze_count() > before) == freeze


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused(freeze=False):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_made_within_is_not_looked_at_again() -> None:
    before = gc.get_freeze_count()
    with gc_paused(freeze=True):
        kept = [[number] for number in range(1000)]
    assert gc.get_freeze_count() - before >= len(kept)
    assert not any(found is kept for found in gc.get_objects())


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), gc_paused(freeze=True):
        import flashllm_that_is_not_there  # noqa: F401
    assert gc.isenabled()
