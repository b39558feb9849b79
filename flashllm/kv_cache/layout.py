"""Keys and values of a context: their encodings, and the memory that they take.

Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.dtypes import row_bytes
from flashllm.errors import UsageError
from flashllm.options import KV_DTYPES, KvDType, KvIndexDType, KvSelection
from flashllm.spec import ModelSpec
from flashllm.units import MIB, format_token_count


def parse_kv_dtype(name: str) -> KvDType:
    """The encoding of that name; `UsageError` if there is none."""
    for dtype in KV_DTYPES:
        if name == dtype:
            return dtype
    raise UsageError(f"--kv-dtype {name}: expected one of {', '.join(KV_DTYPES)}")


def kv_row_bytes(spec: ModelSpec, dtype: KvDType) -> int:
    """Bytes of the keys of one token and head, and of its values."""
    return row_bytes(dtype, spec.head_dim)


def kv_bytes(spec: ModelSpec, context: int, dtype: KvDType) -> int:
    """Keys and values of a whole context."""
    return 2 * spec.n_layers * spec.n_kv_heads * context * kv_row_bytes(spec, dtype)


def score_bytes(spec: ModelSpec, context: int) -> int:
    """Bytes of one token's attention scores, in f32, for all heads and positions."""
    return 4 * spec.n_heads * context


PAGE_TOKENS = 16
"""Tokens of a page: few enough that a scattered choice of tokens reads little besides them."""
_ALIGNMENT_BYTES = 512
"""What direct reads and writes of pages are multiples of, on nearly all disks."""


@dataclass(frozen=True, slots=True)
class PageShape:
    """How pages lie: each has the keys, then the values, of some tokens and one key head.

    A block is the pages of the same tokens, of all layers and heads: what contexts share.
    """

    layers: int
    kv_heads: int
    row_bytes: int
    tokens: int = PAGE_TOKENS

    @classmethod
    def of(cls, spec: ModelSpec, dtype: KvDType) -> PageShape:
        """The shape of a model's pages in an encoding."""
        return cls(spec.n_layers, spec.n_kv_heads, kv_row_bytes(spec, dtype))

    @property
    def part_bytes(self) -> int:
        """Keys of a page, or values."""
        return self.tokens * self.row_bytes

    @property
    def page_bytes(self) -> int:
        """A page, filled up so that it can be read and written directly."""
        return -(-2 * self.part_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    @property
    def block_pages(self) -> int:
        """Pages of a block."""
        return self.layers * self.kv_heads

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.tokens)


@dataclass(frozen=True, slots=True)
class PagePlan:
    """What keys and values take where at most `memory_bytes` of DRAM are theirs."""

    blocks: int
    """Blocks of all contexts together."""
    slots: int
    """Places of pages in DRAM."""
    staging: int
    """Places besides, for pages that are read from flash and dropped after use."""
    memory_bytes: int
    """Pages in DRAM, and what says where pages are."""
    flash_bytes: int
    """The most that the scratch file takes; 0 where all pages fit into DRAM."""


PAGE_READS = 32
"""Reads of pages in flight, each by a thread where there is no other way."""
PAGE_THREADS = PAGE_READS + 1
"""With the one that writes them."""
_PAGE_RECORD_BYTES = 4 + 1 + 8
"""Of each page: its slot, whether it is on flash, two checksums."""
_SLOT_RECORD_BYTES = 8 + 8 + 8 + 4 + 1 + 8 + (3 + 8 + 8)
"""Of each slot: its page, when it was written and used, pins, whether it leaves, its free place.

And while some are chosen that leave: whether it may, its number, and when the newer ones came."""


def least_slots(shape: PageShape) -> int:
    """Slots with which any context can be computed: the last blocks, and one layer's next."""
    return 2 * shape.block_pages + 4 * shape.kv_heads


_STAGED_BYTES = 1 << 20
"""Pages of short contexts are staged several heads at a time, up to so many bytes: each time has to
be waited for, and a read of one head is too short to take as long as a wait."""


def staged_heads(shape: PageShape, context: int) -> int:
    """Key heads of a layer whose pages on flash are staged together, of a context of that size."""
    of_head = shape.blocks(context) * shape.page_bytes
    return max(min(_STAGED_BYTES // of_head, shape.kv_heads), 1)


def plan_pages(
    spec: ModelSpec, context: int, contexts: int, dtype: KvDType, memory_bytes: int
) -> PagePlan:
    """Slots and the rest for `memory_bytes`; `UsageError` where they are too few, with the least.

    A step of attention stages some heads' pages while it computes with others', so that both have
    room (`staged_heads`).
    """
    shape = PageShape.of(spec, dtype)
    blocks = contexts * shape.blocks(context)
    pages = blocks * shape.block_pages
    records = pages * _PAGE_RECORD_BYTES
    whole = pages * (shape.page_bytes + _SLOT_RECORD_BYTES) + records
    if memory_bytes >= whole:
        return PagePlan(blocks, pages, 0, whole, 0)
    least_staging = 2 * shape.blocks(context)
    fixed = records + least_staging * shape.page_bytes
    each = shape.page_bytes + _SLOT_RECORD_BYTES
    least = fixed + least_slots(shape) * each
    if memory_bytes < least:
        least_mib = -(-least // MIB)
        raise UsageError(
            f"--kv-memory {memory_bytes / MIB:.1f}MiB is too little for the keys and values of"
            f" {format_token_count(context)}; expected {least_mib}MiB or more (all of them take"
            f" {-(-whole // MIB)}MiB)"
        )
    heads = staged_heads(shape, context)
    # With little memory most of it is slots.
    while heads > 1 and (
        2 * heads * least_staging * shape.page_bytes > memory_bytes
        or least + (heads - 1) * least_staging * shape.page_bytes > memory_bytes
    ):
        heads -= 1
    staging = heads * least_staging
    fixed += (staging - least_staging) * shape.page_bytes
    slots = min((memory_bytes - fixed) // each, pages)
    return PagePlan(blocks, slots, staging, memory_bytes, pages * shape.page_bytes)


def pages_memory(spec: ModelSpec, context: int, contexts: int, dtype: KvDType, share: float) -> int:
    """The `memory_bytes` of `plan_pages` for a share of all pages in DRAM, or else the least."""
    shape = PageShape.of(spec, dtype)
    pages = contexts * shape.blocks(context) * shape.block_pages
    slots = max(round(share * pages), least_slots(shape))
    held = pages * _PAGE_RECORD_BYTES + slots * (shape.page_bytes + _SLOT_RECORD_BYTES)
    staged = 2 * shape.blocks(context) * shape.page_bytes  # of a head
    return held + staged * max(min(held // staged, staged_heads(shape, context)), 1)


SAMPLE_TOKENS = 64
"""The first tokens of a context, whose queries and keys choose the columns of an index. Contexts
that are no longer need none: all of their tokens are attended to."""


def tokens_max(tokens: int, share: float) -> int:
    """The most tokens that may be fetched of so many."""
    return max(1, int(share * tokens))


def column_count(ratio: float, head_dim: int) -> int:
    """Columns of an index that keeps `ratio` of them."""
    return max(1, int(ratio * head_dim))


def index_bytes(spec: ModelSpec, context: int, ratio: float, dtype: KvIndexDType) -> int:
    """Memory of the index of a layer's keys: partial keys, what makes them, and the first tokens.

    The latter are held in f32 until they have chosen the columns.
    """
    columns = column_count(ratio, spec.head_dim)
    keys, sample = context * row_bytes(dtype, columns), 2 * SAMPLE_TOKENS * spec.head_dim
    evening = 2 * columns  # a centre and a scale of each
    return spec.n_kv_heads * (keys + 4 * (columns * spec.head_dim + evening + sample))


def skewing_bytes(spec: ModelSpec) -> int:
    """Memory of the skewing matrices of a model, in f32."""
    return 4 * spec.n_layers * spec.n_kv_heads * spec.head_dim**2


def choosing_layers(spec: ModelSpec, selection: KvSelection) -> tuple[int, ...]:
    """Layers in which a policy chooses: from the first one on, but those with a window anyway."""
    layers = range(selection.start_layer, spec.n_layers)
    return tuple(layer for layer in layers if not spec.attention_window(layer))


def selection_bytes(spec: ModelSpec, context: int, selection: KvSelection) -> int:
    """Memory of a policy, besides that of keys and values."""
    layers = len(choosing_layers(spec, selection))
    if selection.policy == "infinigen":
        return layers * index_bytes(spec, context, selection.ratio, selection.index_dtype)
    if selection.policy == "specache":
        return layers * index_bytes(spec, context, 1.0, selection.index_dtype)
    if selection.policy == "h2o":
        # Of each token what it had, twice, and whether it is there.
        return layers * spec.n_kv_heads * context * 17
    return 0


def fast_bytes(spec: ModelSpec, tokens: int, dtype: KvDType, selection: KvSelection) -> int:
    """What of so many tokens must be in fast memory at least, where the rest may lie elsewhere.

    That is what a layer fetches, twice, since the next layer's arrives while it is computed with;
    the layers that see everything; and what the policy needs to choose. Of what is lost for good,
    no rest lies anywhere.
    """
    whole = kv_bytes(spec, tokens, dtype)
    if not selection.lossy:
        return whole
    per_layer = whole // spec.n_layers
    layers = len(choosing_layers(spec, selection))
    kept = int(per_layer * selection.share)
    if selection.policy == "values":  # all keys, and some values
        kept = (per_layer + kept) // 2
    stays = layers * kept if selection.policy in ("window", "h2o") else 2 * kept
    return (spec.n_layers - layers) * per_layer + stays + selection_bytes(spec, tokens, selection)
