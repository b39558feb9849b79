"""What this machine's memory and our kernels give, and what a token costs beside its bytes.

Matrices lie in a buffer larger than the last cache where memory allows, as those of a model do that
does not fit into memory. Medians; what is measured is what the decoder calls, in pieces as large.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import DTYPE_BYTES, DTYPES
from flashllm.dtypes import row_bytes as encoded_row_bytes
from flashllm.engine.loading import load_decoder
from flashllm.flash.store import Store
from flashllm.hardware.curves import MachineRates
from flashllm.model.decoder import Decoder
from flashllm.model.token_sets import BlockSlice
from flashllm.planning.cost_model import (
    CHUNK,
    CHUNK_TOKENS,
    NARROW,
    NARROW_ROW_BYTES,
    OWN,
    Encodings,
    ResidentBytes,
    dram_bytes_a_token,
    dram_seconds,
)
from flashllm.system.memory_limit import available_bytes
from flashllm.system.processors import compute_threads
from flashllm.telemetry.costs import TokenCost
from flashllm.telemetry.meter import Meter
from flashllm.weight_cache.rounds import block_ends

RUNS = 5
PRODUCT_SECONDS = 0.3
"""At least, of a product that takes 10 ms. What other programs take of a processor comes in bursts:
the median of five calls was up to three times too long."""
MATRIX_BYTES_LEAST = 64 << 20
MATRIX_BYTES_MOST = 2 << 30
MEMORY_SHARE = 8
"""At most 1 / MEMORY_SHARE of the available memory is taken."""
ROW_BYTES = 8192
"""Of a row of 2048 weights in f32, or of 4096 in 16 bits."""
CALL_BYTES = 16 << 20
NARROW_CALL_BYTES = 2 << 20
SCATTERED_CALL_BYTES = 8 << 20
"""What one call goes through: a projection, a predictor's part, the neurons of one layer. A larger
one would hide what it costs to begin: waking threads, and memory that nobody has asked for yet."""
PIECE_BYTES = 64 << 10
"""Of memory that is read as it lies: so long that its beginnings do not count."""
CALLS = 25
PAUSE_NS = 200_000
"""Between two calls of a decoder something else goes on."""
CHUNK_BLOCK_BYTES = 4 << 20
OWN_SHARE = 8
"""A token is multiplied with one of so many rows of a block."""
PROMPT_TOKENS = 16
WARMING_TOKENS = 16
TIMED_TOKENS = 64
REST_PARTS = ("head", "sample", "other")
"""Parts of a token that belong to no layer."""
_PATTERN = 0x3C
"""A byte that makes small finite numbers in every encoding."""
_CPUS = Path("/sys/devices/system/cpu")
_Piece = TypeVar("_Piece")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def demo_model() -> Path:
    """The demo, converted where it is not yet."""
    from flashllm.convert import demo_model as converted

    return Path(converted())


def _begin_at_once(_done: int, _pieces: int) -> None:
    """Waits for nothing."""


def measure_rates(
    threads: Sequence[int] | None = None,
    *,
    bytes_most: int = MATRIX_BYTES_MOST,
    demo: Callable[[], Path | None] = demo_model,
    before_each: Callable[[int, int], None] = _begin_at_once,
) -> MachineRates:
    """Rates of memory by `threads`, of our kernels at all threads, and the overheads of a token.

    At most `bytes_most` of memory are read through. The overheads are those of the model that
    `demo` gives, and 0 without one. `before_each` is called before each piece of work with the
    numbers of pieces done and in all; it may wait.
    """
    usable = compute_threads()
    threads = threads or sorted({usable, *(1 << power for power in range(usable.bit_length()))})
    pieces = itertools.count()
    all_pieces = len(threads) + 2 * len(DTYPES) + 1

    def begin() -> None:
        before_each(next(pieces), all_pieces)

    buffer = core.Buffer(min(matrix_bytes(last_cache_bytes(), available_bytes()), bytes_most))
    buffer.array().fill(_PATTERN)
    dram: dict[int, float] = {}
    for count in threads:
        begin()
        dram[count] = dram_rate(buffer, count)
    kernels = core.open_kernels(usable)
    matvec: dict[str, float] = {}
    rows: dict[str, float] = {}
    try:
        for dtype in DTYPES:
            begin()
            matvec[dtype] = matvec_rate(kernels, buffer, dtype, ROW_BYTES)
            matvec[NARROW.format(dtype)] = matvec_rate(kernels, buffer, dtype, NARROW_ROW_BYTES)
            matvec[CHUNK.format(dtype)] = chunk_rate(dtype, usable)
            rows[dtype] = scattered_rate(kernels, buffer, dtype)
            begin()
            matvec[OWN.format(dtype)] = own_rate(kernels, buffer, dtype)
    finally:
        kernels.close()
    del buffer
    rates = MachineRates(dram, matvec, rows, layer_overhead_ns=0.0, token_overhead_ns=0.0)
    begin()
    directory = demo()
    if directory is None:
        return rates
    layer_ns, token_ns = overheads(rates, directory)
    return MachineRates(dram, matvec, rows, layer_ns, token_ns)


def last_cache_bytes() -> int:
    """Size of all last caches of this machine together, 0 where the system does not tell."""
    found: dict[tuple[int, str], int] = {}
    for path in sorted(_CPUS.glob("cpu[0-9]*/cache/index*/size")):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text("ascii").strip()
            level = int((path.parent / "level").read_text("ascii"))
            sharing = (path.parent / "shared_cpu_list").read_text("ascii")
            factor = _UNITS.get(text[-1:], 1)
            found[level, sharing] = int(text.rstrip("KMG")) * factor
    last = max((level for level, _ in found), default=0)
    return sum(nbytes for (level, _), nbytes in found.items() if level == last)


def matrix_bytes(cache_bytes: int, available_bytes: int) -> int:
    """How large a matrix is measured: 256 MiB and four caches at least, where memory allows."""
    wanted = min(max(256 << 20, 4 * cache_bytes), MATRIX_BYTES_MOST)
    return max(min(wanted, available_bytes // MEMORY_SHARE), MATRIX_BYTES_LEAST) // 4096 * 4096


def dram_rate(buffer: core.Buffer, threads: int) -> float:
    """Bytes per second of plain reads through a buffer."""
    found = [core.stream_read_ns(buffer, threads) for _ in range(RUNS)]
    return buffer.nbytes * 1e9 / statistics.median(found)


def pages_rate(memory: NDArray[np.uint8], threads: int) -> float:
    """Bytes per second of plain reads through memory that is there already, piece by piece."""
    piece_bytes = min(PIECE_BYTES, memory.nbytes)
    pieces = np.arange(memory.nbytes // piece_bytes, dtype=np.int32)
    found = [core.row_read_ns(memory, piece_bytes, pieces, threads) for _ in range(RUNS)]
    return len(pieces) * piece_bytes * 1e9 / statistics.median(found)


def matvec_rate(kernels: core.Kernels, buffer: core.Buffer, dtype: str, row_bytes: int) -> float:
    """Bytes per second of matrices times a vector, rows of `row_bytes`, each matrix another one.

    Wide rows are those of resident matrices, which lie in tiles where there are some.
    """
    is_wide = row_bytes == ROW_BYTES
    call_bytes = CALL_BYTES if is_wide else NARROW_CALL_BYTES
    columns, row_bytes = _row(dtype, row_bytes)
    rows = min(call_bytes, buffer.nbytes) // row_bytes
    whole_tiles = max(kernels.tile_rows(dtype), 1)
    rows = rows // whole_tiles * whole_tiles or rows
    call_bytes = rows * row_bytes
    pieces = np.split(buffer.array()[: buffer.nbytes // call_bytes * call_bytes],
                      buffer.nbytes // call_bytes)  # fmt: skip
    tiled = is_wide and all(kernels.tile_matrix(piece, dtype, columns) for piece in pieces)
    following = _from_elsewhere(pieces, dtype)
    x, out = np.ones((1, columns), np.float32), np.empty((1, rows), np.float32)
    return call_bytes / _median_call(lambda: kernels.matmul(next(following), dtype, x, out, tiled))


def scattered_rate(kernels: core.Kernels, buffer: core.Buffer, dtype: str) -> float:
    """Bytes per second of what a token does with its neurons: dots with up, a sum of down.

    Every call takes others, so that none is in a cache since the call before.
    """
    width, row_bytes = _row(dtype, ROW_BYTES)
    stride, raw = 2 * row_bytes, buffer.array()
    shuffled = np.random.default_rng(0).permutation(buffer.nbytes // stride)
    a_call = max(min(SCATTERED_CALL_BYTES // stride, len(shuffled) // 4), 1)
    shares = np.split(shuffled[: len(shuffled) // a_call * a_call], len(shuffled) // a_call)
    sets = _from_elsewhere([np.sort(ids).astype(np.int32) for ids in shares], dtype)
    x, out = np.ones(width, np.float32), np.zeros(width, np.float32)
    weights = np.ones(len(shares[0]), np.float32)

    def neurons() -> None:
        ids = next(sets)
        dots = np.empty(len(ids), np.float32)
        kernels.dot_rows(raw, stride, 0, dtype, ids, x, dots)
        ones, ends = weights[: len(ids)], block_ends(ids)
        kernels.weighted_sum_rows(raw, stride, row_bytes, dtype, ids, ones, ends, out)

    return a_call * stride / _median_call(neurons)


def chunk_rate(dtype: str, threads: int) -> float:
    """Encoded bytes × tokens per second of a prompt's products."""
    width = 2048
    row_bytes = encoded_row_bytes(dtype, width)
    rows = CHUNK_BLOCK_BYTES // row_bytes
    raw = np.full(rows * row_bytes, _PATTERN, np.uint8)
    x = np.ones((CHUNK_TOKENS, width), np.float32)
    out = np.empty((CHUNK_TOKENS, rows), np.float32)
    kernels = core.open_kernels(threads)
    try:
        seconds = _median_seconds(lambda: kernels.matmul(raw, dtype, x, out))
    finally:
        kernels.close()
    return len(raw) * CHUNK_TOKENS / seconds


def own_rate(kernels: core.Kernels, buffer: core.Buffer, dtype: str) -> float:
    """Bytes per second of what tokens of a prompt do with neurons of a block, of each its own.

    Every call takes another block, as those of a layer come, as far as the buffer has others: in a
    large cache those of a quick profile stay.
    """
    width, row_bytes = _row(dtype, ROW_BYTES)
    stride = 2 * row_bytes
    block_bytes = min(CHUNK_BLOCK_BYTES, buffer.nbytes)
    bundles = block_bytes // stride
    blocks = np.split(buffer.array()[: buffer.nbytes // block_bytes * block_bytes],
                      buffer.nbytes // block_bytes)  # fmt: skip
    following = _from_elsewhere(blocks, dtype)
    generator, a_token = np.random.default_rng(0), max(bundles // OWN_SHARE, 1)
    each = [np.sort(generator.permutation(bundles)[:a_token]) for _ in range(CHUNK_TOKENS)]
    ends = np.arange(1, CHUNK_TOKENS + 1, dtype=np.int32) * np.int32(a_token)
    own = BlockSlice(np.concatenate(each).astype(np.int32), ends)
    x, out = np.ones(CHUNK_TOKENS * width, np.float32), np.zeros(CHUNK_TOKENS * width, np.float32)
    dots, ones = np.empty(len(own.ids), np.float32), np.ones(len(own.ids), np.float32)

    def neurons() -> None:
        rows = next(following)
        kernels.dot_rows_each(rows, stride, 0, dtype, own.ids, ends, x, dots)
        kernels.weighted_sum_rows_each(
            rows, stride, row_bytes, dtype, own.ids, ones, ends, own.block_ends(), out
        )

    return len(own.ids) * stride / _median_seconds(neurons)


def own_rate_of(dtype: str, threads: int) -> float:
    """The same by kernels and with a buffer of its own."""
    buffer = core.Buffer(MATRIX_BYTES_LEAST)
    buffer.array().fill(_PATTERN)
    kernels = core.open_kernels(threads)
    try:
        return own_rate(kernels, buffer, dtype)
    finally:
        kernels.close()


def _row(dtype: str, row_bytes: int) -> tuple[int, int]:
    """Weights in a row of so many bytes, and its bytes; of 8 and 4 bits as many as of 16."""
    columns = row_bytes // DTYPE_BYTES.get(dtype, DTYPE_BYTES["f16"])
    return columns, encoded_row_bytes(dtype, columns)


def overheads(rates: MachineRates, directory: Path) -> tuple[float, float]:
    """Nanoseconds of a layer, and of the rest of a token, that no bytes explain: on the demo."""
    # With the shortest window every layer reads, so that handing reads over is counted too.
    decoder, plan, store = load_decoder(directory, window=1)
    with store:
        costs, context = _decode(decoder, store)
    spec = store.spec
    resident = ResidentBytes.of(spec, plan.split["predictors"])
    used = statistics.median(cost.hits + cost.misses for cost in costs)
    moved = dram_bytes_a_token(
        spec, resident, used, 0, spec.bundle_bytes, context, kv_dtype=plan.kv_dtype
    )
    seconds = dram_seconds(rates, Encodings.of(spec), moved)
    rest_ns = statistics.median(_rest_ns(cost) for cost in costs)
    layers_ns = statistics.median(_layers_ns(cost) for cost in costs)
    layers_ns -= (seconds.total - seconds.head) * 1e9
    return max(layers_ns, 0.0) / spec.n_layers, max(rest_ns - seconds.head * 1e9, 0.0)


def _layers_ns(cost: TokenCost) -> float:
    """Of a token, what its layers took, reads apart."""
    rest = sum(cost.parts_ns[part] for part in REST_PARTS)
    return cost.wall_ns - rest - cost.io_busy_ns


def _rest_ns(cost: TokenCost) -> float:
    return sum(cost.parts_ns[part] for part in REST_PARTS)


def _decode(decoder: Decoder, store: Store) -> tuple[list[TokenCost], float]:
    """What tokens cost once everything is warm, and the mean length of their context."""
    meter = Meter(store.reader.stats, decoder.pool.counters, decoder.clock)
    ids = np.random.default_rng(0).integers(8, decoder.spec.vocab_size, PROMPT_TOKENS)
    logits = decoder.prefill(ids.tolist())
    costs = []
    for _ in range(WARMING_TOKENS + TIMED_TOKENS):
        token = int(np.argmax(logits))
        meter.start()
        logits = decoder.decode(token)
        costs.append(meter.token())
    return costs[WARMING_TOKENS:], PROMPT_TOKENS + WARMING_TOKENS + TIMED_TOKENS / 2


def _from_elsewhere(pieces: list[_Piece], dtype: str) -> Iterator[_Piece]:
    """The pieces round and round, for each encoding from others on: a cache knows none of them."""
    begin = DTYPES.index(dtype) * (CALLS + 1) % len(pieces)
    return itertools.cycle([*pieces[begin:], *pieces[:begin]])


def _median_call(call: Callable[[], None]) -> float:
    """Of CALLS calls with pauses between, after one that does not count."""
    call()
    seconds = []
    for _ in range(CALLS):
        end_ns = time.perf_counter_ns() + PAUSE_NS
        while time.perf_counter_ns() < end_ns:
            pass  # awake, as a decoder is between two products
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _median_seconds(call: Callable[[], object]) -> float:
    """Of RUNS calls and of PRODUCT_SECONDS, after one that does not count."""
    call()
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < RUNS or time.perf_counter() - began < PRODUCT_SECONDS:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
