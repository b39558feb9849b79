"""The ring that layers are read through: what is asked for, how far ahead, and after a fault."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.errors import ReadFailed
from flashllm.system.clock import PartClock
from flashllm.weight_cache.block_stream import BlockStream

STRIDE = 512
BUNDLES = 100
BLOCK = 32


class FakeStore:
    """Each bundle holds its layer and its number; what is under way is known."""

    def __init__(self) -> None:
        self.header = SimpleNamespace(bundles_per_layer=BUNDLES, stride=STRIDE)
        self.under_way: dict[int, tuple[int, int]] = {}
        self.most_under_way = 0
        self.submitted: list[tuple[int, int]] = []
        self.bad: set[tuple[int, int]] = set()

    def submit_span(
        self, layer: int, first: int, count: int, buffer: core.Buffer, place: int
    ) -> int:
        raw = buffer.array()[place : place + count * STRIDE]
        rows = raw.reshape(count, STRIDE).view(np.int32)
        rows[:, 0], rows[:, 1] = layer, np.arange(first, first + count)
        self.submitted.append((layer, first))
        ticket = len(self.submitted)
        self.under_way[ticket] = (layer, first)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return ticket

    def submit_bundles(
        self,
        layer: int,
        ids: Ids,
        buffer: core.Buffer,
        places: NDArray[np.int64],
        *,
        spans_gaps: bool,
    ) -> list[int]:
        assert not spans_gaps, "what lies between is in slots"
        return [
            self.submit_span(layer, bundle, 1, buffer, place)
            for bundle, place in zip(ids.tolist(), places.tolist(), strict=True)
        ]

    def wait_bundles(self, layer: int, tickets: list[int]) -> None:
        for ticket in tickets:
            begun = self.under_way.pop(ticket)
            assert begun[0] == layer
            if begun in self.bad:
                raise ReadFailed(f"{begun}")


def stream(depth: int) -> tuple[BlockStream, FakeStore]:
    store: Any = FakeStore()
    return BlockStream(store, BLOCK * STRIDE, depth, PartClock(), core.Kernels(1)), store


def take(ring: BlockStream, layer: int, first: int = 0) -> list[tuple[int, int]]:
    """What lies in the bundles of a layer, looked at while each block is held."""
    found = []
    for block in ring.blocks(layer, first):
        ids, positions, rows = block.parts()
        values = rows.reshape(-1, STRIDE).view(np.int32)[positions]
        assert np.array_equal(values[:, 1], ids)
        found += [(int(row[0]), int(row[1])) for row in values]
    return found


@pytest.mark.parametrize("depth", [2, 3, 16])
def test_layers_come_whole_and_in_order_with_no_more_blocks_than_the_ring(depth: int) -> None:
    ring, store = stream(depth)
    firsts = [0, 40, 100, 0, 99]
    ring.expect(enumerate(firsts))
    assert store.most_under_way == min(depth, 11)
    for layer, first in enumerate(firsts):
        assert take(ring, layer, first) == [(layer, number) for number in range(first, BUNDLES)]
    assert store.submitted == [
        (layer, start) for layer, first in enumerate(firsts) for start in range(first, 100, BLOCK)
    ]
    assert store.most_under_way <= depth
    assert not store.under_way


def test_while_a_block_is_computed_with_all_other_buffers_are_being_read() -> None:
    ring, store = stream(4)
    ring.expect([(0, 0), (1, 0)])
    for number, block in enumerate(ring.blocks(0)):
        assert len(store.under_way) == min(3, 8 - number - 1)
        assert ring.begun(0) == min(block.first + 4 * BLOCK, BUNDLES)
    # Between layers, when attention is computed, all four.
    assert len(store.under_way) == 4


def test_what_was_not_expected_is_read_all_the_same() -> None:
    ring, store = stream(3)
    ring.expect([(0, 0), (1, 0)])
    assert take(ring, 2, 64) == [(2, number) for number in range(64, BUNDLES)]
    assert not store.under_way
    assert take(ring, 1) == [(1, number) for number in range(BUNDLES)]


def test_nothing_is_left_behind_by_a_layer_that_ends_in_the_middle() -> None:
    ring, store = stream(3)
    ring.expect([(0, 0), (1, 0)])
    held = ring.blocks(0)
    next(held)
    ring.drain()
    assert not store.under_way
    ring.expect([(3, 0)])
    assert len(store.under_way) == 3
    assert take(ring, 3) == [(3, number) for number in range(BUNDLES)]


def test_a_read_that_fails_is_told_and_the_next_prompt_is_read() -> None:
    ring, store = stream(3)
    store.bad = {(0, 64), (0, 96)}
    ring.expect([(0, 0), (1, 0)])
    with pytest.raises(ReadFailed, match="64"):
        take(ring, 0)
    # Another one, that nobody waited for, is of no interest.
    ring.expect([(1, 0)])
    assert take(ring, 1) == [(1, number) for number in range(BUNDLES)]


def test_borrowed_rooms_are_used_until_they_are_given_back() -> None:
    ring, store = stream(2)
    lender = core.Buffer(5 * BLOCK * STRIDE)
    places = [BLOCK * STRIDE, 3 * BLOCK * STRIDE]
    ring.borrow(lender, places)
    ring.expect(enumerate([0, 0, 0]))
    assert store.most_under_way == 4
    for layer in range(3):
        assert take(ring, layer) == [(layer, number) for number in range(BUNDLES)]
    blocks = lender.array().reshape(5, -1)
    assert blocks[[1, 3]].any(axis=1).all()
    assert not blocks[[0, 2, 4]].any()
    # Given back while blocks are read into them: nothing is, afterwards.
    ring.expect([(0, 0), (1, 0)])
    ring.give_back()
    assert not store.under_way
    lender.array().fill(0)
    store.most_under_way = 0
    ring.expect([(2, 0)])
    assert take(ring, 2) == [(2, number) for number in range(BUNDLES)]
    assert store.most_under_way == 2
    assert not lender.array().any()


def test_pieces_of_a_block() -> None:
    ring, _ = stream(2)
    for block in ring.blocks(0, 64):
        pieces = list(block.pieces(20))
        assert [piece.first for piece in pieces] == list(
            range(block.first, block.first + len(block), 20)
        )
        raws = [piece.raw() for piece in (*pieces, block)]
        *parts, whole = [raw for raw in raws if raw is not None]
        assert len(parts) == len(pieces)
        assert np.array_equal(np.concatenate(parts), whole)


class FakeHeld:
    """Bundles of layer 1 in memory, in an order of their own."""

    def __init__(self, held: Iterable[int], stays: bool) -> None:
        self.slots = {bundle: slot for slot, bundle in enumerate(held)}
        self.buffer = core.Buffer(BUNDLES * STRIDE)
        self.rows = self.buffer.array()
        self.rows_of = lambda _: self.rows
        self.places = False
        self.kept: list[int] = []
        values = self.rows.reshape(-1, STRIDE).view(np.int32)
        for bundle, slot in self.slots.items():
            values[slot, :2] = 1, bundle
        self._stays = stays

    def positions(self, layer: int, first: int, count: int) -> Ids:
        slots = self.slots if layer == 1 else {}
        return np.array([slots.get(first + i, -1) for i in range(count)], dtype=np.int32)

    def stay(self, layer: int) -> bool:
        return self._stays

    def place(self, layer: int, first: int, count: int) -> int | None:
        return first * STRIDE if self.places and layer == 1 else None

    def keep(self, layer: int, first: int, count: int) -> None:
        self.kept.append(first)
        self.slots |= {bundle: bundle for bundle in range(first, first + count)}


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("depth", [2, 5])
def test_what_is_held_is_not_read(depth: int, stays: bool) -> None:
    ring, store = stream(depth)
    # A block in order, one in another order, a part of one, none of the last.
    ring.held = FakeHeld([*range(32), *range(63, 31, -1), 70, 64, 95], stays)
    ring.expect([(0, 0), (1, 0), (2, 0), (1, 0)])
    for layer in (0, 1, 2, 1):
        assert take(ring, layer) == [(layer, number) for number in range(BUNDLES)]
    whole = [(0, first) for first in range(0, BUNDLES, BLOCK)]
    rest = [(1, number) for number in range(64, 96) if number not in (70, 64, 95)]
    assert store.submitted == [
        *whole, *rest, (1, 96), *[(2, first) for _, first in whole], *rest, (1, 96),
    ]  # fmt: skip
    assert not store.under_way


@pytest.mark.parametrize(("stays", "moves"), [(False, True), (True, False)])
def test_what_may_be_evicted_is_copied_before(stays: bool, moves: bool) -> None:
    ring, _ = stream(3)
    ring.held = held = FakeHeld(range(BUNDLES), stays)
    ring.expect([(1, 0)])
    for block in ring.blocks(1):
        assert (block.rows is not held.rows) == moves
        if moves:
            held.rows.fill(0)
            _, positions, rows = block.parts()
            assert rows.reshape(-1, STRIDE)[positions].any(axis=1).all()
        break


def test_a_block_that_stays_is_read_to_its_place() -> None:
    ring, store = stream(2)
    ring.held = held = FakeHeld([], True)
    held.places = True
    ring.expect([(0, 0), (1, 0), (1, 0)])
    assert take(ring, 0) == [(0, number) for number in range(BUNDLES)]
    assert take(ring, 1) == [(1, number) for number in range(BUNDLES)]
    assert held.kept == [0, 32, 64, 96]
    assert np.array_equal(held.rows.reshape(-1, STRIDE).view(np.int32)[:, 1], range(BUNDLES))
    assert take(ring, 1) == [(1, number) for number in range(BUNDLES)]
    assert len(store.submitted) == 8
    assert not store.under_way


def test_what_could_not_be_read_is_not_kept() -> None:
    ring, store = stream(2)
    ring.held = held = FakeHeld([], True)
    held.places = True
    store.bad = {(1, 64)}
    ring.expect([(1, 0)])
    with pytest.raises(ReadFailed):
        take(ring, 1)
    assert held.kept == [0, 32]
    ring.drain()
    assert not store.under_way


def test_a_block_on_its_way_is_not_read_to_the_same_place_again() -> None:
    ring, store = stream(8)
    ring.held = held = FakeHeld([], True)
    held.places = True
    ring.expect([(1, 0), (1, 0)])
    assert len(store.under_way) == 8
    for _ in range(2):
        assert take(ring, 1) == [(1, number) for number in range(BUNDLES)]
    assert held.kept == [0, 32, 64, 96]


def test_no_more_is_ahead_than_there_are_rooms_where_all_is_held() -> None:
    ring, store = stream(3)
    ring.held = FakeHeld(range(BUNDLES), True)
    ring.expect([(1, 0)] * 1000)
    assert len(ring._ahead) == 3
    for _ in range(3):
        assert len(take(ring, 1)) == BUNDLES
    assert not store.submitted
