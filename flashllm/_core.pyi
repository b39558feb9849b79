"""The native core: direct reads into memory allocated once, products of rows, tables of slots.

Bytes, rows and numbers; no tokens and no meaning of layers. Arrays are contiguous, of one dimension
unless a docstring says otherwise, and taken as they are: a wrong type raises TypeError, it is never
converted.
Every size, offset, id and slot is checked before anything is read or written.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NAME: str

def available_isas() -> list[str]:
    """Instruction sets that this processor runs, the best last."""

def expert_weights(
    logits: NDArray[np.float32],
    choice_bias: NDArray[np.float32] | None,
    per_token: int,
    sigmoid: bool,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    sum_offset: float,
    weight_scale: float,
    weights: NDArray[np.float32],
) -> None:
    """Weights [tokens, experts] of the experts that a router's logits choose; 0 of the others.

    The `per_token` largest logits, or scores plus `choice_bias`, the lowest id among equals; of
    several `groups` of neighbours, of those `groups_kept` whose two best sum up to most. A weight
    is the softmax's score or the sigmoid's, divided by the sum of them plus `sum_offset` where they
    are renormalised, times `weight_scale`.
    """

def gate_rows(
    gate: NDArray[np.float32],
    up: NDArray[np.float32] | None,
    slope: float,
    limit: float,
    up_offset: float,
    out: NDArray[np.float32],
) -> None:
    """Out [rows, columns] = gate * sigmoid(slope * gate) * (up + up_offset).

    A limit other than 0 is the most that gate and up count, and minus it the least of up. Rows
    of gate and of up, [rows, columns], may lie apart.
    """

def gelu(x: NDArray[np.float32], exact: bool, out: NDArray[np.float32]) -> None:
    """Out [n] = x times the share of the normal distribution that is below it.

    Or, not exact, times what approximates that by tanh. Source: arXiv 1606.08415, section 2.
    """

def row_bytes(dtype: str, columns: int) -> int:
    """Bytes of one row of an encoding: f32, f16, bf16, int8, int4 or mxfp4."""

class ChecksumError(RuntimeError):
    """A bundle is not what was written, also when it was read again."""

class Buffer:
    """Anonymous page-aligned memory: allocated once, zero, never moves, touched when first used.

    Without `huge_pages`, what is touched here and there takes as little memory as it can.
    """

    def __init__(self, nbytes: int, huge_pages: bool = True) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def array(self) -> NDArray[np.uint8]:
        """The memory itself, writable; the array keeps the buffer alive."""

    def discard(self, begin: int, nbytes: int) -> None:
        """Give the whole pages within these bytes back to the system; what they held is lost.

        `ValueError` for bytes outside.
        """

class Reader:
    """Positioned reads on one file, `threads` in flight: by as many threads, or on one io_uring.

    `backend` is "auto" (as "threads"), "threads" or "uring"; where io_uring is refused, threads
    read and `backend_problem` says why. Where direct reads are optional and one is refused by
    EINVAL, all go through the page cache from then on, and `direct` and `fallback` say so.
    """

    def __init__(
        self,
        path: str,
        direct: str = "optional",
        threads: int = 32,
        gap_bytes: int = 0,
        max_read_bytes: int = 524288,
        backend: str = "auto",
    ) -> None: ...
    @property
    def direct(self) -> bool: ...
    @property
    def fallback(self) -> str: ...
    @property
    def alignment(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def backend(self) -> str: ...
    @property
    def backend_problem(self) -> str: ...
    def verify_bundles(
        self,
        checksums: NDArray[np.uint32],
        file_id: bytes,
        data_offset: int,
        stride: int,
        bundle_bytes: int,
        bundles_per_layer: int,
        always: bool = False,
    ) -> None:
        """Hold every bundle against its checksum when it is read, at first or `always`.

        From now on reads are of whole bundles, one every `stride` bytes from `data_offset` on. A
        wrong one is read again, once, past the page cache. ValueError after the first `submit`.
        """

    def submit(
        self,
        offsets: NDArray[np.int64],
        length: int,
        buffer: Buffer,
        destinations: NDArray[np.int64],
        urgent: bool = False,
        ahead: bool = False,
        spans_gaps: bool = True,
    ) -> int:
        """Start reading `length` bytes at each offset; returns a ticket for `wait`.

        Reads of an urgent batch are started before all others that have not been. Those of a batch
        that is read ahead are started behind all others, four at a time. Without `spans_gaps` one
        read takes no more of what lies between two than alignment asks for.
        """

    def hasten(self, ticket: int) -> None:
        """What is read ahead is needed: from now on its reads are started like any other."""

    def drop(self, ticket: int) -> int:
        """A batch is not needed: no more of its reads are started.

        `wait` has to follow, and raises InterruptedError unless all had been. Returns the useful
        bytes of those that had.
        """

    def wait(self, ticket: int) -> None:
        """Until the reads of a ticket are done.

        EOFError, InterruptedError, OSError or ChecksumError if not.
        """

    def read(
        self,
        offsets: NDArray[np.int64],
        length: int,
        buffer: Buffer,
        destinations: NDArray[np.int64],
    ) -> None:
        """Submit and wait."""

    def cancel(self) -> None:
        """Drop what is queued; what is in flight is finished before `wait` returns."""

    def clear_cancel(self) -> None:
        """Accept work again."""

    def stats(self) -> dict[str, int | list[int]]:
        """Counters since the reader was opened."""

    def latency_histogram(self) -> NDArray[np.uint64]:
        """Reads by how long they took, since then; `flash.latency` has the bins."""

    def keep_read_times(self, keep: bool) -> None:
        """From now on note when reads begin and end, up to 262,144 of them; or no longer."""

    def take_read_times(self) -> NDArray[np.int64]:
        """Beginning and end of each read that was noted, in ns of `time.perf_counter_ns`, in turn.

        They are forgotten with that.
        """

    def close(self) -> None:
        """End the threads; later calls raise ValueError."""

class Kernels:
    """Products of encoded rows, on threads of their own, the same for every number of them."""

    def __init__(self, threads: int = 1, isa: str | None = None, fast: bool = False) -> None: ...
    @property
    def fast(self) -> bool:
        """Whether vectors that rows of groups are multiplied with are rounded to 7 bits."""

    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    def matvec(
        self,
        rows: NDArray[np.uint8],
        dtype: str,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """Out [n] = rows [n, d] @ x [d]."""

    def matvec_each(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        dtype: str,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """`matvec` of matrices that begin at bytes of `data`, out [matrices, n].

        Each with its vector of x [matrices, d], or with the only one. IndexError for a matrix
        outside the bytes.
        """

    def dot_rows(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """out[i] = dot of x with the row at byte ids[i] * row_stride + row_offset."""

    def weighted_sum_rows(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        block_ends: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """Out [d] += for each block in order, the sum of weights[i] * row ids[i] within it."""

    def dot_rows_each(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        vector_ends: NDArray[np.int32],
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """`dot_rows` of each vector of x [vectors * d], whose ids end at vector_ends [vectors]."""

    def weighted_sum_rows_each(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        vector_ends: NDArray[np.int32],
        block_ends: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """`weighted_sum_rows` of each vector of out [vectors * d], by its ids and its blocks."""

    def matmul(
        self,
        rows: NDArray[np.uint8],
        dtype: str,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        tiled: bool = False,
    ) -> None:
        """Out [vectors, n] = x [vectors, d] @ rows [n, d].T: the bits of `matvec` for each.

        `tiled` rows are as `tile_matrix` left them.
        """

    def matmul_several(
        self,
        rows: Sequence[NDArray[np.uint8]],
        dtype: str,
        biases: Sequence[NDArray[np.float32] | None],
        x: NDArray[np.float32],
        outs: Sequence[NDArray[np.float32]],
        tiled: bool = False,
    ) -> None:
        """`matmul` of matrices of one encoding with the same vectors, each plus its bias [n].

        For one vector all of them are one job of the threads.
        """

    def apply_experts(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        dtype: str,
        has_biases: bool,
        slope: float,
        limit: float,
        up_offset: float,
        x: NDArray[np.float32],
        room: NDArray[np.float32],
        out: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
        total: NDArray[np.float32] | None = None,
    ) -> None:
        """Outputs [experts, d] of experts that begin at bytes of `data`: gate, up and down.

        The bits of `matvec_each`, `gate_rows` and `matvec_each`. Each expert gets its vector of x
        [experts, d], or the only one; `has_biases` if those of the three lie behind them, in f32.
        `room` [experts, 2 * neurons] is memory to work in. With `weights` [experts], `total` [d]
        += each output times its weight, in order.
        """

    def route(
        self,
        rows: NDArray[np.uint8],
        dtype: str,
        bias: NDArray[np.float32] | None,
        choice_bias: NDArray[np.float32] | None,
        per_token: int,
        sigmoid: bool,
        groups: int,
        groups_kept: int,
        renormalise: bool,
        sum_offset: float,
        weight_scale: float,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> int:
        """The experts of a token x [d] whose `expert_weights` are not 0, ascending.

        `rows` are a router's, plus its `bias` [experts]. Fills the first of `ids` and `weights`
        [per_token], and returns how many.
        """

    def tile_rows(self, dtype: str) -> int:
        """Rows of a tile of this encoding; 0 where the instruction set has no tiles of it."""

    def tile_matrix(self, rows: NDArray[np.uint8], dtype: str, columns: int) -> bool:
        """Puts the rows of a matrix in tiles, in place, with which `matmul` has less to do.

        Its bits stay the same; `decode_tiles` reads rows of it, and nothing else. False, with
        nothing changed, where the instruction set has no tiles of this encoding, or the rows are
        no whole tiles.
        """

    def dot_rows_all(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """`dot_rows` of the same ids for each vector of x [vectors, d]; out [vectors, ids]."""

    def weighted_sum_rows_all(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        block_ends: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """`weighted_sum_rows` of the same ids for each vector of out [vectors, d].

        Each has weights of its own, of `weights` [vectors, ids].
        """

    def attend(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        kv_heads: int,
        first: int,
        end: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """One token's attention: out [heads * columns] = softmax(scale * query @ keys) @ values.

        Keys and values are [kv_heads, capacity, row]; positions first to end - 1 are seen.
        `sinks` [heads] are scores of no position: they take their share, and bring no value.
        """

    def attend_projected(
        self,
        query: NDArray[np.float32],
        key: NDArray[np.float32],
        value: NDArray[np.float32],
        query_norm: NDArray[np.float32] | None,
        key_norm: NDArray[np.float32] | None,
        eps: float,
        cos: NDArray[np.float32] | None,
        sin: NDArray[np.float32] | None,
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        kv_heads: int,
        first: int,
        position: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """One token's `place_heads`, `write_head_rows` at `position` and `attend`, the same bits.

        `query`, `key` and `value` are as they are projected, [heads * columns] each; `cos` and
        `sin` [pairs] are those of `position`. Attends to positions `first` to `position`. What is
        wrong with a row that cannot be encoded begins with "key: " or "value: ".
        """

    def attend_each(
        self,
        query: NDArray[np.float32],
        keys: Sequence[NDArray[np.uint8]],
        values: Sequence[NDArray[np.uint8]],
        dtype: str,
        columns: int,
        kv_heads: int,
        ends: NDArray[np.int64],
        window: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend` of a token of each of several contexts, out [contexts, heads * columns].

        Keys and values of each are as of `attend`; it sees the last `window` of its ends[i]
        positions, or all of them where `window` is 0.
        """

    def attend_many(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        kv_heads: int,
        tokens: int,
        end: int,
        window: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend` of the last `tokens` of `end` positions, out [tokens * heads * columns].

        Each sees those before it and itself, the last `window` of them where that is not 0, and has
        the bits that it has alone.
        """

    def attend_runs(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        runs: NDArray[np.int64],
        run_ends: NDArray[np.int32],
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend` of rows in runs, with its bits where they are those of its positions in order.

        A run, of `runs` [n, 3], has the bytes of `keys` and `values` where its rows begin, and how
        many there are. Those of key head h end at run_ends[h], of [kv_heads]; heads may have
        different numbers of rows. IndexError for rows outside the bytes.
        """

    def attend_many_runs(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        runs: NDArray[np.int64],
        run_ends: NDArray[np.int32],
        tokens: int,
        window: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend_many` of rows in runs, of as many positions as each key head has rows."""

    def write_head_rows(
        self,
        values: NDArray[np.float32],
        dtype: str,
        columns: int,
        kv_heads: int,
        position: int,
        cache: NDArray[np.uint8],
    ) -> None:
        """Encode [kv_heads, tokens, columns] as the rows of positions from `position` on.

        ValueError for a NaN or an infinity, OverflowError for what the encoding cannot hold.
        """

    def write_head_rows_each(
        self,
        values: NDArray[np.float32],
        dtype: str,
        columns: int,
        kv_heads: int,
        positions: NDArray[np.int64],
        caches: Sequence[NDArray[np.uint8]],
    ) -> None:
        """`write_head_rows` of a token [kv_heads * columns] of each of several contexts.

        Row i of `values` [contexts, kv_heads * columns] becomes position positions[i] of caches[i];
        no cache is there twice.
        """

    def encode_rows(
        self,
        values: NDArray[np.float32],
        columns: int,
        dtype: str,
        out: NDArray[np.uint8],
    ) -> None:
        """Encode values [n * columns] into out [n * row_bytes]: ValueError for NaN and infinity."""

    def decode_rows(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        columns: int,
        out: NDArray[np.float32],
    ) -> None:
        """Out [n * columns] = the values of the rows at bytes ids * row_stride + row_offset."""

    def decode_tiles(
        self,
        rows: NDArray[np.uint8],
        dtype: str,
        ids: NDArray[np.int32],
        columns: int,
        out: NDArray[np.float32],
    ) -> None:
        """Out [n * columns] = the values of rows `ids` of a matrix that `tile_matrix` put in tiles.

        ValueError where there are no such tiles; IndexError for a row outside the bytes.
        """

    def copy_rows(
        self,
        rows: NDArray[np.uint8],
        row_ids: NDArray[np.int32],
        row_bytes: int,
        to: NDArray[np.uint8],
        to_ids: NDArray[np.int32],
    ) -> None:
        """Row to_ids[i] of `to` = row row_ids[i] of `rows`, for rows of `row_bytes` bytes."""

    def norm_rows(
        self,
        x: NDArray[np.float32],
        weight: NDArray[np.float32] | None,
        bias: NDArray[np.float32] | None,
        centred: bool,
        eps: float,
        out: NDArray[np.float32],
    ) -> None:
        """Out = x [rows, columns], normed, times `weight` and plus `bias` [columns].

        Divided by its root mean square, or `centred`, less its mean, by its standard deviation; of
        which `eps` is added to the square.
        """

    def place_heads(
        self,
        x: NDArray[np.float32],
        columns: int,
        weight: NDArray[np.float32] | None,
        eps: float,
        cos: NDArray[np.float32] | None,
        sin: NDArray[np.float32] | None,
        out: NDArray[np.float32],
    ) -> None:
        """Out [heads * tokens * columns] = the heads of x [tokens, heads * columns].

        With `weight` [columns] each is divided by its root mean square and multiplied by it. With
        `cos` and `sin` [tokens, pairs], pairs from the two halves of its first columns are turned.
        """

    def add_shares(
        self,
        rows: NDArray[np.float32],
        weights: NDArray[np.float32],
        ids: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """Row ids[i] of `out` [n, columns] += weights[i] * row i of `rows`, in order of i.

        IndexError for an id outside.
        """

    def close(self) -> None:
        """End the threads; later calls raise ValueError."""

class SlotTable:
    """Which bundle of a layer is in which slot, and which give way: those that are worth least.

    What a bundle is worth is a weighted sum of one or two terms: `terms` [n_bundles * n_terms],
    which are the caller's, who may change them between calls; the weights are `scales` [n_terms]
    of a token. A use gives term t what term `carried[t]` was, or 0 where that is -1, plus
    `added[t]`. Slots are numbered from `first_slot` on, but counted from 0 in `slot_of` and
    `bundle_in`.
    One caller at a time. What raises IndexError or ValueError has changed nothing, `put` apart.
    """

    def __init__(
        self,
        n_bundles: int,
        n_slots: int,
        carried: Sequence[int],
        terms: NDArray[np.float64],
        first_slot: int = 0,
    ) -> None: ...
    @property
    def slot_of(self) -> NDArray[np.int32]:
        """The slot of each bundle or -1: the memory itself, not to be written to."""

    @property
    def bundle_in(self) -> NDArray[np.int32]:
        """The bundle in each slot or -1: the memory itself, not to be written to."""

    @property
    def prefetched_ids(self) -> NDArray[np.int32]:
        """What the last `prefetch` found slots for, in front: not to be written to."""

    @property
    def prefetched_slots(self) -> NDArray[np.int32]:
        """The slots of `prefetched_ids`."""

    @property
    def free_slots(self) -> int: ...
    def acquire(
        self,
        ids: NDArray[np.int32],
        in_flight: NDArray[np.int32],
        scales: Sequence[float],
        added: Sequence[float],
        expired: float,
        slots: NDArray[np.int32],
        states: NDArray[np.uint8],
    ) -> tuple[int, int, int]:
        """Use distinct `ids`, and give slots to those that are in none.

        Given up is first what is worth `expired` or less, then what is worth least; neither `ids`
        nor what is `in_flight`. Of each id: `slots`, and `states`, 0 where it was in its slot, 1
        where it is missing, 2 where it is among those in flight. Returns how many were missing, how
        many of `ids` are in flight, and how many were given up that had not expired.
        """

    def prefetch(self, ids: NDArray[np.int32], scales: Sequence[float]) -> tuple[int, int]:
        """Slots for distinct `ids` in none, the first ones, as many as fit beside the others.

        Returns how many got one, the first of `prefetched_ids`, and how many others gave way.
        """

    def put(self, ids: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        """Bundles in no slot into free slots; ValueError at the first that is in one, or is not."""

    def evict(self, slots: NDArray[np.int32]) -> None:
        """What is in these slots is there no more; free ones stay so."""

    def clear(self) -> None:
        """All slots are free."""

    def limit(self, count: int) -> None:
        """From now on only the first `count` slots get bundles; what is in the others is given up.

        ValueError where there are not so many.
        """

def ids_above(
    scores: NDArray[np.float32], limits: NDArray[np.float32], ids: NDArray[np.int32]
) -> int:
    """Write the positions of the scores above their limits, ascending, to the front of `ids`.

    Returns how many. A NaN is above nothing. All have one size.
    """

def keys_above(
    scores: NDArray[np.float32], limits: NDArray[np.float32], keys: NDArray[np.int64]
) -> int:
    """Write the same positions as keys of an order, in their lower 32 bits; returns how many.

    Sorted, they begin with what exceeds its limit the most, and with the first of equals.
    """

def true_columns(
    mask: NDArray[np.bool_], columns: NDArray[np.int32], ends: NDArray[np.int32]
) -> int:
    """Write the columns of what is true in `mask` [rows, n] to the front of `columns`, by row.

    `ends` [rows] gets where each row's end there. Returns how many. Rows of the mask may lie apart.
    ValueError where `columns` has no room for them.
    """

def run_ends(
    ids: NDArray[np.int32],
    vector_ends: NDArray[np.int32],
    block_ids: int,
    out: NDArray[np.int32],
) -> int:
    """Write the ends of the runs of `ids` that lie in one block of `block_ids` and one vector.

    `vector_ends` says where each vector's ids end, which ascend. Returns how many runs there are;
    their ends are at the front of `out`. ValueError where it is shorter than `ids`.
    """

def stream_read_ns(buffer: Buffer, threads: int) -> int:
    """Nanoseconds to read the buffer once, each thread a part of it: the best of a few passes."""

def row_read_ns(
    data: NDArray[np.uint8], row_bytes: int, ids: NDArray[np.int32], threads: int
) -> int:
    """Nanoseconds to read rows, row id at byte id * row_bytes, in the order of `ids`.

    The best of a few passes; each thread reads a part of them. IndexError for an id outside.
    """

def crc32c(data: NDArray[np.uint8] | bytes, value: int = 0) -> int:
    """CRC-32C of the bytes, continuing from `value`."""

def bundle_checksums(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    bundle_bytes: int,
    file_id: bytes,
    layer: int,
    numbers: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """CRC-32C of the bundle at each of `begins`, seeded by file, layer and its number.

    ValueError for a bundle that is not within `data`.
    """
