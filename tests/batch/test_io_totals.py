"""What a block moves, counted: each layer once a token for all rows, keys and values as A.2 has it.

Source of the totals: FlexGen, arXiv 2303.06865, section 4.1 and A.2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashllm.engine.loading import load_decoder
from flashllm.kv_cache.context import Context
from flashllm.model.decoder import Decoder
from flashllm.planning.batch.io_totals import zigzag_totals
from flashllm.planning.batch.policy import Workload
from flashllm.planning.batch.shape import BatchShape
from tests.kv_cache.test_kv_memory import CONTEXT, IDS, limit

ROWS, PROMPT, NEW = 4, 64, 32


def prompts(decoder: Decoder) -> list[Context]:
    contexts = [decoder.context, *(decoder.new_context() for _ in range(ROWS - 1))]
    for number, context in enumerate(contexts):
        decoder.prefill(IDS[number : number + PROMPT], context=context)
    return contexts


def test_a_block_loads_weights_once_a_token_and_rows_alone_once_each(sparse_model: Path) -> None:
    decoder, plan, store = load_decoder(sparse_model, select="all", contexts=ROWS, context=CONTEXT)
    with store:
        decoder.ask_to_release(plan.ceiling_bytes)  # no slots: each use of a layer is a load
        contexts = prompts(decoder)
        layers_bytes = decoder.spec.bundled_layers * decoder.spec.d_ffn * store.header.stride
        found = {}
        for together in (True, False):
            before = store.reader.stats()["bytes_read"]
            for token in IDS[:6]:
                if together:
                    assert len(list(decoder.decode_each([token] * ROWS, contexts))) == ROWS
                else:
                    for context in contexts:
                        decoder.decode(token, context)
            found[together] = store.reader.stats()["bytes_read"] - before
        assert found == {True: 6 * layers_bytes, False: 6 * ROWS * layers_bytes}


def test_keys_and_values_of_a_block_are_those_of_the_formula(sparse_model: Path) -> None:
    """Read from flash: all that the new tokens see, in whole pages, but for what is in slots."""
    with load_decoder(sparse_model, contexts=1)[2] as store:
        spec = store.spec
    decoder, _, store = load_decoder(
        sparse_model, select="all", contexts=ROWS, context=CONTEXT,
        kv_memory=limit(spec, contexts=ROWS),
    )  # fmt: skip
    with store:
        contexts, pool = prompts(decoder), decoder.kv_pool
        assert pool is not None
        before = pool.report()["bytes_read"]
        for token in IDS[:NEW]:
            assert len(list(decoder.decode_each([token] * ROWS, contexts))) == ROWS
        read = pool.report()["bytes_read"] - before
    shape, size = BatchShape.of(spec), pool.shape
    # The first of the n tokens is the prompt's, which reads nothing; each one sees itself.
    seen = sum(range(PROMPT + 1, PROMPT + NEW + 1))
    formula = zigzag_totals(shape, Workload(PROMPT, NEW), ROWS).kv
    assert formula == shape.kv_bytes * ROWS * shape.n_layers * (seen - NEW)
    row_bytes = 2 * size.row_bytes * size.kv_heads
    assert shape.kv_bytes == row_bytes
    pages = ROWS * size.block_pages * sum(size.blocks(PROMPT + at + 1) for at in range(NEW))
    held = NEW * pool.plan.slots
    assert formula <= pages * 2 * size.part_bytes <= 1.2 * formula
    assert (pages - held) * size.page_bytes <= read <= pages * size.page_bytes
    assert read > 0.4 * np.ceil(formula * size.page_bytes / (2 * size.part_bytes))
