"""The chunk of a block of rows: as large as reads the least, within its part of the memory."""

import dataclasses
import math

import pytest
from flashllm.convert.families.known_shapes import describe_shape

from flashllm.options import ModelOptions
from flashllm.planning.plan import make_plan, smallest_ceiling
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.planning.shape_estimate import sizes_of_shape
from flashllm.planning.sizes import Sizes
from flashllm.units import MIB
from tests.support.specs import SPEC

WIDE = dataclasses.replace(
    SPEC, d_model=4096, embed_dim=4096, n_heads=64, n_kv_heads=64, n_layers=32, d_ffn=16384
)
SIZES = Sizes(
    interpreter=35 * MIB, embeddings=MIB, attention=MIB, predictors=MIB, stride=16384, activity=None
)
WEIGHT_BYTES = 32 * 16384 * 16384
ROWS = ModelOptions(select="all", contexts=32, context=64)


def chunk(options: ModelOptions, spare_bytes: int) -> int:
    least_bytes = smallest_ceiling(WIDE, SIZES, options)
    plan = make_plan(WIDE, SIZES, options.having(memory=least_bytes + spare_bytes))
    assert sum(plan.split.values()) <= plan.ceiling_bytes
    return plan.prefill.tokens


def bytes_read(tokens: int, rows: int, context: int, spare_bytes: int) -> float:
    """Each chunk and each step reads what the slots do not hold; half of a context is prompt."""
    shape = PrefillShape.of(WIDE, SIZES.stride)
    slot_bytes = spare_bytes - (tokens - shape.tokens) * shape.token_bytes(WIDE)
    each = max(WEIGHT_BYTES - slot_bytes, 0)
    return each * (math.ceil(rows * context / 2 / tokens) + context / 2)


@pytest.mark.parametrize("spare_mib", [300, 600, 1000, 1800])
def test_a_block_has_the_chunk_that_reads_least(spare_mib: int) -> None:
    spare_bytes, least = spare_mib * MIB, PrefillShape.of(WIDE, SIZES.stride)
    sizes = [128, 256, 512, 1024, 2048]
    fitting = [size for size in sizes if (size - 128) * least.token_bytes(WIDE) <= spare_bytes // 2]
    best = min(fitting, key=lambda size: bytes_read(size, 32, 64, spare_bytes))
    assert chunk(ROWS, spare_bytes) == best
    assert best > chunk(ROWS.having(contexts=1), spare_bytes)


def test_of_long_answers_to_few_rows_chunks_stay_small() -> None:
    """Two rows have few prompts, and each step would read what a larger chunk takes from slots."""
    assert chunk(ROWS.having(contexts=2, context=64), 1800 * MIB) <= 512
    assert chunk(ROWS.having(contexts=1, context=64), 1800 * MIB) <= 512


def test_a_chunk_has_no_more_tokens_than_prompts_have() -> None:
    assert chunk(ROWS.having(contexts=4, context=64), 1800 * MIB) <= 512
    assert chunk(ROWS.having(contexts=32, context=64), 4000 * MIB) <= 1024
    assert chunk(ROWS.having(contexts=32, context=64, chunk_tokens=64), 1800 * MIB) == 64


def test_a_chunk_takes_nothing_from_slots_that_were_asked_for() -> None:
    spare_bytes = 1000 * MIB
    asked = ROWS.having(slot_memory=spare_bytes)
    assert chunk(ROWS, spare_bytes) > chunk(asked, spare_bytes) == 128
    assert chunk(ROWS.having(slot_memory=spare_bytes // 4), spare_bytes) > 128


def test_rows_of_experts_have_larger_chunks_too() -> None:
    spec = describe_shape("qwen3-30b-a3b")
    sizes = sizes_of_shape(spec, 35 * MIB)
    options = ModelOptions(select="router", context=288, memory=8 << 30)
    one, rows = (make_plan(spec, sizes, options.having(contexts=n)) for n in (1, 32))
    assert one.prefill.tokens == 512
    assert rows.prefill.tokens > 512
    assert sum(rows.split.values()) <= rows.ceiling_bytes


def test_where_all_weights_have_room_nothing_is_read() -> None:
    """Then a chunk is as large as that of one row."""
    spare_bytes = 2 * WEIGHT_BYTES
    assert chunk(ROWS, spare_bytes) == chunk(ROWS.having(contexts=1), spare_bytes)
