"""An embedding that stays on flash: the same bits, less memory, and each row as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert

from flashllm.engine.local import open_model
from flashllm.errors import ChecksumMismatch, ModelTruncated
from flashllm.flash import matrix_rows
from flashllm.flash.file_names import RESIDENT_FILE
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.flash.store import Store
from flashllm.flash.tensor_table import EMBEDDING
from flashllm.options import Verify
from flashllm.planning import plan as planning
from flashllm.planning import sizes
from tests.support.tiny import tiny

IDS = np.random.default_rng(5).integers(3, 96, size=70).tolist()


@pytest.fixture(scope="module", params=["f32", "bf16", "int8", "int4"])
def untied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is a matrix of its own, with rows of an odd width."""
    root = tmp_path_factory.mktemp("untied")
    sizes: dict[str, Any] = {
        "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 39,
        "num_key_value_heads": 2, "head_dim": 6, "tie_word_embeddings": False,
    }  # fmt: skip
    tiny("qwen3_moe", **sizes).save_pretrained(root / "source")
    convert(root / "source", root / "converted", dtype=request.param)
    return root / "converted"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its size and the room that there is, the embedding stays on flash."""
    monkeypatch.setattr(sizes, "EMBEDDING_LEAST_BYTES", 0)
    monkeypatch.setattr(planning, "_has_room_left", lambda *_: False)


def answers(directory: Path, **options: Any) -> tuple[list[int], np.ndarray, bool]:
    """Tokens, logits of a text, and whether the embedding is on flash."""
    with open_model(directory, context=100, **options) as model:
        made = [token.id for token in model.generate(IDS, max_tokens=20)]
        return made, model.decoder.logits(IDS), model.plan.embedding_on_flash


@pytest.mark.parametrize("verify", ["off", "first", "always"])
@pytest.mark.parametrize("direct", [True, False])
def test_the_bits_are_the_same(
    untied: Path, monkeypatch: pytest.MonkeyPatch, verify: Verify, direct: bool
) -> None:
    tokens, logits, is_on_flash = answers(untied, verify=verify, direct=direct)
    assert not is_on_flash, "there is room for all"
    monkeypatch.setattr(sizes, "EMBEDDING_LEAST_BYTES", 0)
    monkeypatch.setattr(planning, "_has_room_left", lambda *_: False)
    same, other, is_on_flash = answers(untied, verify=verify, direct=direct)
    assert is_on_flash
    assert same == tokens
    assert np.array_equal(logits, other)


def test_rows_are_those_of_the_file(untied: Path) -> None:
    """In any order, the same ones twice, and none."""
    with Store(untied) as store:
        everything = store.load_resident(direct=True)[EMBEDDING].raw.copy()
    with Store(untied) as store:
        left = store.load_resident(direct=True, leaves_embedding=True)
        assert EMBEDDING not in left
        rows = store.embedding_rows
        assert rows is not None
        table = everything.reshape(rows.count, -1)
        everyone = list(range(rows.count))
        for ids in ([0], everyone[-1:], [5, 5, 5], [], everyone[:32][::-1], everyone[-32:]):
            got = rows.read(np.array(ids, np.int32))
            assert np.array_equal(got.reshape(len(ids), table.shape[1]), table[ids])
        for wrong in (-1, rows.count):
            with pytest.raises(IndexError, match=f"a row of {EMBEDDING} outside its"):
                rows.read(np.array([0, wrong], np.int32))
        assert rows.stats()["bytes_read"] > 0


@pytest.mark.usefixtures("left")
def test_a_row_a_token_is_counted(untied: Path) -> None:
    with open_model(untied, context=100) as model:
        rows = model._store.embedding_rows
        assert rows is not None
        before = int(rows.stats()["bytes_read"])  # type: ignore[arg-type]
        list(model.generate(IDS[:9], max_tokens=8))
        after = int(rows.stats()["bytes_read"])  # type: ignore[arg-type]
        bundles = int(model._store.reader.stats()["bytes_read"])
        assert after - before >= 16 * 12, "a row of 12 bytes at least for each token"
        assert model.reader_stats()["bytes_read"] == bundles + after


@pytest.mark.usefixtures("left")
def test_several_rows_of_a_batch(untied: Path) -> None:
    with open_model(untied, context=100, contexts=3) as model:
        contexts = [None, model.new_context(), model.new_context()]
        together = [
            model.generate(IDS[at : at + 20], max_tokens=9, context=context)
            for at, context in enumerate(contexts)
        ]
        together[0].first_of_each(together[1:])
        while any(one.pending is not None for one in together):
            going = [one for one in together if one.pending is not None]
            going[0].next_of_each(going[1:])
        found = [one.ids for one in together]
    with open_model(untied, context=100) as model:
        for at, ids in enumerate(found):
            alone = model.generate(IDS[at : at + 20], max_tokens=9)
            assert [token.id for token in alone] == ids


@pytest.fixture
def damaged(untied: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in untied.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def test_a_flip_before_it_is_opened_is_found(damaged: Path) -> None:
    path = damaged / RESIDENT_FILE
    record = read_tensor_index(path)[EMBEDDING]
    for at in (
        record.offset,
        record.offset + record.nbytes // 2,
        record.offset + record.nbytes - 1,
    ):
        flip(path, at)
        with Store(damaged) as store, pytest.raises(ChecksumMismatch, match="resident"):
            store.load_resident(direct=True, leaves_embedding=True)
        flip(path, at)
    with Store(damaged, "off") as store:
        flip(path, record.offset)
        store.load_resident(direct=True, leaves_embedding=True)
        assert store.embedding_rows is not None
        store.embedding_rows.read(np.zeros(1, np.int32))  # nobody asked for it


def test_a_flip_afterwards_is_found_in_its_row(damaged: Path) -> None:
    path = damaged / RESIDENT_FILE
    record = read_tensor_index(path)[EMBEDDING]
    row = record.nbytes // record.shape[0]
    with Store(damaged) as store:
        store.load_resident(direct=True, leaves_embedding=True)
        rows = store.embedding_rows
        assert rows is not None
        flip(path, record.offset + 41 * row + row - 1)
        matrix_rows.forget_cached(path)
        assert len(rows.read(np.array([40, 42], np.int32))) == 2 * row
        with pytest.raises(ChecksumMismatch, match=rf"tensor {EMBEDDING}, row 41: not what was"):
            rows.read(np.array([40, 41, 42], np.int32))
        flip(path, record.offset + 41 * row + row - 1)
        matrix_rows.forget_cached(path)
        assert len(rows.read(np.array([41], np.int32))) == row, "as it was again"


def test_a_file_that_became_short(damaged: Path) -> None:
    path = damaged / RESIDENT_FILE
    record = read_tensor_index(path)[EMBEDDING]
    with Store(damaged) as store:
        store.load_resident(direct=True, leaves_embedding=True)
        assert store.embedding_rows is not None
        with path.open("r+b") as file:
            file.truncate(record.offset + 10)
        with pytest.raises(ModelTruncated, match="ends too early"):
            store.embedding_rows.read(np.array([90], np.int32))
