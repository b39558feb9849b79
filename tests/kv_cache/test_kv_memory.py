"""Models whose keys and values have a limit: the same tokens, and what the plan says of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashllm.engine.loading import open_decoder
from flashllm.engine.local import Model, open_model
from flashllm.errors import MemoryCeilingTooSmall, NotEnoughSpace, ReadFailed, UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.kv_cache.layout import (
    PAGE_THREADS,
    PageShape,
    kv_bytes,
    plan_pages,
    score_bytes,
)
from flashllm.kv_cache.page_pool import PagePool
from flashllm.kv_cache.page_reads import FlashReads, flash_reads_a_token
from flashllm.library.open import open_model as open_by_name
from flashllm.model.decoder import Decoder
from flashllm.options import ModelOptions
from flashllm.planning.plan import ADVICE_MARGIN_BYTES, make_plan, smallest_ceiling
from flashllm.planning.sizes import Sizes
from flashllm.planning.ways_to_read import THREAD_BYTES
from flashllm.spec import ModelSpec
from tests.support.specs import SPEC

IDS = np.random.default_rng(3).integers(3, 96, size=200).tolist()
CONTEXT = 160


def limit(spec: ModelSpec, contexts: int = 1) -> int:
    """So little that most of a context is on flash."""
    for nbytes in range(1 << 12, 1 << 24, 1 << 12):
        try:
            plan = plan_pages(spec, CONTEXT, contexts, "f16", nbytes)
        except UsageError:
            continue
        assert plan.flash_bytes
        return nbytes
    raise AssertionError


@pytest.fixture(scope="module")
def small(sparse_model: Path) -> int:
    return limit(read_manifest(sparse_model).spec)


def logits(decoder: Decoder, ids: Sequence[int] = IDS[:110]) -> Iterator[np.ndarray]:
    yield decoder.prefill(ids)
    for token in IDS[110:150]:
        yield decoder.decode(token)


def test_logits_are_the_same_with_any_limit(sparse_model: Path, small: int) -> None:
    with open_decoder(sparse_model, context=CONTEXT, chunk_tokens=40) as decoder:
        assert decoder.kv_pool is None
        expected = list(logits(decoder))
    for nbytes in (small, small + 20_000, 1 << 24):
        with open_decoder(
            sparse_model, context=CONTEXT, chunk_tokens=40, kv_memory=nbytes
        ) as decoder:
            found = list(logits(decoder))
            pool = decoder.kv_pool
            assert pool is not None
            report = pool.report()
            assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
            # And again, in a context that is cut and goes on.
            decoder.prefill(IDS[90:110], cached=90)
            assert np.array_equal(decoder.decode(IDS[110]), expected[1])
            if nbytes == 1 << 24:
                assert report["bytes_written"] == report["flash_bytes"] == 0
            else:
                assert report["bytes_written"] > 0
                assert report["bytes_read"] > report["bytes_written"]
                assert report["directory"] == str(sparse_model)
                assert not list(sparse_model.glob(".flashllm-kv*"))


def answers(model: Model) -> list[list[int]]:
    """Of two contexts by turns, one of which is asked again."""
    first = model.generate(IDS[:70], max_tokens=60)
    other = model.generate(IDS[30:90], max_tokens=60, context=model.new_context())
    found = [[one.id, two.id] for one, two in zip(first, other, strict=True)]
    again = model.generate([*IDS[:60], 7, 8], max_tokens=20)
    again.complete()
    return [*found, again.ids]


def test_contexts_of_a_model_share_the_limit(sparse_model: Path, tmp_path: Path) -> None:
    settings = {"context": CONTEXT, "contexts": 2}
    with open_model(sparse_model, **settings) as model:  # type: ignore[arg-type]
        expected = answers(model)
        assert model.kv_report() is None
    kv_memory = limit(model.info.spec) + 30_000
    with open_by_name(
        sparse_model,
        kv_memory=f"{kv_memory / 1024}KiB",
        kv_dir=tmp_path,
        **settings,  # type: ignore[arg-type]
    ) as model:
        assert answers(model) == expected
        report = model.kv_report()
        assert report is not None
        assert report["directory"] == str(tmp_path)
        assert report["bytes_written"] > 0
        assert model.plan.kv_pages is not None
        # A token's cost has all that was read for it.
        model.generate(IDS[:100], max_tokens=1).complete()
        report = model.kv_report()
        answer = model.generate([*IDS[:100], 9], max_tokens=10)
        answer.complete()
        more = model.kv_report()
        assert report is not None
        assert more is not None
        paged = more["bytes_read"] - report["bytes_read"]
        costs = [answer.prefill, *answer.costs]
        assert sum(cost.bytes_read for cost in costs) >= paged > 0
        report = more
    assert model.kv_report() == report, "known after it was closed"
    assert not list(tmp_path.iterdir())


def test_the_plan_counts_the_limit_instead_of_all_keys_and_values() -> None:
    sizes = Sizes(interpreter=1, embeddings=2, attention=3, predictors=0, stride=4096)
    options = ModelOptions(select="all", context=512, contexts=16)
    whole, plan = (
        make_plan(SPEC, sizes, options.having(kv_memory=nbytes)) for nbytes in (None, 1 << 20)
    )
    assert plan.kv_pages == plan_pages(SPEC, 512, 16, "f16", 1 << 20)
    threads_bytes = PAGE_THREADS * THREAD_BYTES
    assert plan.split["kv"] == (1 << 20) + threads_bytes + score_bytes(SPEC, 512)
    saved = 16 * kv_bytes(SPEC, 512, "f16") - (1 << 20) - threads_bytes
    assert whole.smallest_bytes - plan.smallest_bytes == saved > 0
    # The limit is of memory that is there.
    pool = PagePool(PageShape.of(SPEC, "f16"), replace(plan.kv_pages, flash_bytes=0))
    assert pool.buffer.nbytes <= 1 << 20


def test_a_token_reads_what_has_no_slots() -> None:
    shape = PageShape.of(SPEC, "f16")
    plan = plan_pages(SPEC, 512, 1, "f16", 1 << 20)
    here = plan.slots // shape.block_pages
    assert 0 < here < 32
    expected = (32 - here) * shape.block_pages * shape.page_bytes
    assert flash_reads_a_token(SPEC, "f16", plan, 512) == FlashReads(expected, 0)
    assert flash_reads_a_token(SPEC, "f16", plan, here * 16) == FlashReads(0, 0)


def test_limits_that_make_no_sense(sparse_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kv_memory=.* too little"):
        open_by_name(sparse_model, kv_memory=2000, context=CONTEXT)
    with pytest.raises(UsageError, match="kv_memory: "):
        open_by_name(sparse_model, kv_memory="much")
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(Exception, match="no place for keys and values") as caught:
        open_by_name(sparse_model, kv_memory=50_000, context=CONTEXT, kv_dir=file)
    assert caught.value.__class__.__name__ == "CannotCreate"


def test_a_full_disk_is_known_when_the_model_is_opened(
    sparse_model: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("flashllm.kv_cache.tiers.shutil.disk_usage", lambda _: usage)
    with pytest.raises(NotEnoughSpace, match=r"kv_dir|--kv-dir"):
        open_model(sparse_model, context=CONTEXT, kv_memory=small)


def test_what_is_kept_comes_back_in_pages(
    sparse_model: Path, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept keys and values of a model without a limit, restored by one that has one, and back."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    with open_model(sparse_model, context=CONTEXT, keep_kv=1 << 24) as model:
        answer = model.generate(IDS[:100], max_tokens=20)
        answer.complete()
    asked = [*IDS[:100], *answer.ids, 5]
    with open_model(sparse_model, context=CONTEXT) as model:
        expected = model.generate(asked, max_tokens=20)
        expected.complete()
    for kv_memory in (small, None, small):
        with open_model(
            sparse_model, context=CONTEXT, keep_kv=1 << 24, kv_memory=kv_memory
        ) as model:
            found = model.generate(asked, max_tokens=20)
            found.complete()
            assert found.ids == expected.ids
            assert found.reused_tokens >= 90


def test_a_conversation_goes_on_after_its_pages_were_damaged(
    sparse_model: Path, small: int
) -> None:
    """The answer ends with an error; asked again, all is computed anew."""
    with open_model(sparse_model, context=CONTEXT) as model:
        expected = model.generate(IDS[:110], max_tokens=30).complete().ids
    with open_model(sparse_model, context=CONTEXT, kv_memory=small) as model:
        model.generate(IDS[:100], max_tokens=2).complete()
        pool = model._decoder.kv_pool
        assert pool is not None
        assert pool.file is not None
        stored = np.flatnonzero(pool._on_flash)
        os.ftruncate(pool.file._file.fileno(), int(stored[0]) * pool.shape.page_bytes)
        with pytest.raises(ReadFailed, match="layer 0, offset 0"):
            model.generate(IDS[:110], max_tokens=30).complete()
        os.ftruncate(pool.file._file.fileno(), pool.file.nbytes)
        assert model.generate(IDS[:110], max_tokens=30).complete().ids == expected


def test_tokens_of_several_contexts_at_once(sparse_model: Path) -> None:
    """A block of contexts, whose prompts begin alike: each as alone without a limit."""
    prompts = [IDS[:40], [*IDS[:30], *IDS[50:80]], IDS[60:130]]

    def run(decoder: Decoder) -> list[np.ndarray]:
        contexts = [decoder.context, decoder.new_context(), decoder.new_context()]
        for context, prompt in zip(contexts, prompts, strict=True):
            decoder.share_prefix(context, prompt)
            cached = context.tokens.cached_prefix(prompt)
            decoder.prefill(prompt[cached:], cached=cached, context=context)
        return [
            logits
            for token in IDS[130:160]
            for logits in decoder.decode_each([token, token, 5], contexts)
        ]

    with open_decoder(sparse_model, context=CONTEXT, contexts=3) as decoder:
        expected = run(decoder)
    kv_memory = limit(decoder.spec, contexts=3)
    for overlap in ("layer", "none"):
        with open_decoder(
            sparse_model, context=CONTEXT, contexts=3, kv_memory=kv_memory, overlap=overlap
        ) as decoder:
            assert all(map(np.array_equal, run(decoder), expected))
            assert decoder.kv_pool is not None
            assert decoder.kv_pool.overlaps == (overlap != "none")
            assert decoder.kv_pool.report()["bytes_read"] > 0


@pytest.mark.parametrize("eighths", [1, 3, 7])
def test_a_ceiling_without_room_for_keys_and_values_names_the_way_to_flash(eighths: int) -> None:
    sizes = Sizes(interpreter=1, embeddings=2, attention=3, predictors=0, stride=4096)
    options = ModelOptions(select="all", context=512, contexts=512, kv_dtype="int8")
    part = eighths * 512 * kv_bytes(SPEC, 512, "int8") // 8 >> 20
    needed = smallest_ceiling(SPEC, sizes, options.having(kv_memory=part << 20))
    ceiling = needed + ADVICE_MARGIN_BYTES
    with pytest.raises(MemoryCeilingTooSmall, match=f"or --kv-memory {part}MiB$"):
        make_plan(SPEC, sizes, options.having(memory=ceiling))
    assert make_plan(SPEC, sizes, options.having(memory=ceiling, kv_memory=part << 20))
