"""Keys and values that are kept on flash: a prompt goes on from them, bit for bit, or without."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import convert

from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from flashllm.kv_cache import kept_directory, kept_file
from flashllm.system import paths
from flashllm.units import MIB
from tests.support.tiny import tiny

DRAWN = Sampling(temperature=1.0, seed=7)
DRAW = np.random.default_rng(5)
FIRST = [int(one) for one in DRAW.integers(5, 90, 100)]
SECOND = [int(one) for one in DRAW.integers(5, 90, 20)]
OPTIONS = {"context": 160, "keep_kv": 64 * MIB}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kept_directory, "FREE_BYTES_MIN", 0)
    monkeypatch.setattr(kept_file, "RECORD_TOKENS", 64)


@pytest.fixture(scope="module")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes all neurons."""
    root = tmp_path_factory.mktemp("dense")
    tiny("llama", hidden_act="silu", max_position_embeddings=160).save_pretrained(root / "source")
    convert(root / "source", root / "converted")
    return root / "converted"


@pytest.fixture(params=["sparse_model", "dense_model"])
def directory(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def answer(model: Model, prompt: list[int], tokens: int = 12) -> tuple[list[int], int]:
    """The ids, and the tokens of the prompt that were not read again."""
    generation = model.generate(prompt, tokens, DRAWN).complete()
    return generation.ids, generation.reused_tokens


def turn(model: Model, tokens: int = 12) -> list[int]:
    """A first answer; the prompt of the next one."""
    ids, _ = answer(model, FIRST, tokens)
    return [*FIRST, *ids, *SECOND]


@pytest.fixture
def expected(directory: Path) -> tuple[list[int], int, np.ndarray]:
    """Of a second turn where nothing is closed: the answer, what it reused, keys and values."""
    with open_model(directory, **(OPTIONS | {"keep_kv": None})) as model:
        ids, reused = answer(model, turn(model))
        assert reused >= len(FIRST)
        return ids, reused, rows(model)


def rows(model: Model) -> np.ndarray:
    cache = model.decoder.context.keys_values
    return np.stack(
        [cache.encoded(layer, 0, cache.length) for layer in range(model.info.spec.n_layers)]
    )


def kept() -> list[Path]:
    return sorted(paths.kept_kv_dir().glob("*"))


def test_the_second_turn_goes_on_after_a_restart(
    directory: Path, expected: tuple[list[int], int, np.ndarray]
) -> None:
    with open_model(directory, **OPTIONS) as model:
        prompt = turn(model)
    (file,) = kept()
    assert file.stat().st_mode & 0o777 == 0o600
    for _ in range(2):  # the second time the file has more than is asked for
        with open_model(directory, **OPTIONS) as model:
            ids, reused = answer(model, prompt)
            assert ids == expected[0]
            assert expected[1] <= reused < len(prompt)
            assert np.array_equal(rows(model), expected[2])
            assert model.cautions() == []
    assert kept() == [file]


def test_an_idle_model_keeps_while_it_is_open(
    directory: Path, expected: tuple[list[int], int, np.ndarray]
) -> None:
    model = open_model(directory, **OPTIONS)
    prompt = turn(model)
    steps = 1
    while model.keep_context():
        steps += 1
    assert steps == 2  # records of at most 64 tokens
    (file,) = kept()
    whole = file.read_bytes()
    model.close()
    assert file.read_bytes() == whole
    for end in (len(whole) - 1, len(whole) * 9 // 10, len(whole) // 2, 30, 0):  # killed meanwhile
        for other in kept():
            other.unlink()
        file.write_bytes(whole[:end])
        with open_model(directory, **OPTIONS) as model:
            ids, reused = answer(model, prompt)
            assert ids == expected[0]
            assert reused == (64 if end > len(whole) * 8 // 10 else 0)


def test_a_flipped_bit_is_noticed(
    directory: Path, expected: tuple[list[int], int, np.ndarray]
) -> None:
    with open_model(directory, **OPTIONS) as model:
        prompt = turn(model)
    (file,) = kept()
    whole, draw = file.read_bytes(), random.Random(3)
    for at in [3, 12, *(draw.randrange(len(whole)) for _ in range(8)), len(whole) - 2]:
        for other in kept():
            other.unlink()
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        with open_model(directory, **OPTIONS) as model:
            ids, reused = answer(model, prompt)
            assert ids == expected[0]
            assert reused < expected[1]
            assert any(str(file) in caution for caution in model.cautions())


@pytest.mark.parametrize("change", ["kv_dtype", "version", "file"])
def test_what_others_computed_is_not_used(
    sparse_model: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(sparse_model, **OPTIONS) as model:
        prompt = turn(model)
    options = dict(OPTIONS)
    if change == "kv_dtype":
        options["kv_dtype"] = "int8"
    elif change == "version":
        monkeypatch.setattr("flashllm.__version__", "0.0.1")
    else:
        (file,) = kept()
        file.write_bytes(b"something else" * 50)
    with open_model(sparse_model, **options) as model:
        assert answer(model, prompt)[1] == 0


def test_another_branch_is_cut_off_and_another_chat_begins_a_file(sparse_model: Path) -> None:
    with open_model(sparse_model, **OPTIONS) as model:
        prompt = turn(model)
        answer(model, [*prompt[:-5], 7, 8, 9])  # another question after the same answer
        assert len(kept()) == 0
        while model.keep_context():
            pass
        other = [11, *FIRST[:90]]
        ids, _ = answer(model, other)
    first, second = kept()
    with open_model(sparse_model, **OPTIONS) as model:
        again, reused = answer(model, other)
        assert (again, reused > 64) == (ids, True)
        assert answer(model, [*prompt[:-5], 7, 8, 9])[1] > len(FIRST) // 2
    assert kept() == [first, second]


def test_the_oldest_goes_where_there_is_no_room(sparse_model: Path) -> None:
    with open_model(sparse_model, **OPTIONS) as model:
        turn(model)
    (file,) = kept()
    room = file.stat().st_size * 5 // 2
    prompts = [[first, *FIRST[:90]] for first in (11, 12, 13)]
    options = OPTIONS | {"keep_kv": room}
    for prompt in prompts:
        with open_model(sparse_model, **options) as model:
            answer(model, prompt)
    assert sum(one.stat().st_size for one in kept()) <= room
    with open_model(sparse_model, **options) as model:
        assert [answer(model, prompt)[1] > 64 for prompt in reversed(prompts)][:2] == [True, True]
    with open_model(sparse_model, **(OPTIONS | {"keep_kv": 0})) as model:
        assert kept() == []
        answer(model, prompts[0])
    assert kept() == []


def test_a_full_disk_ends_keeping_and_nothing_else(
    directory: Path,
    expected: tuple[list[int], int, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = iter(range(1000))
    pwrite = os.pwrite

    def full(descriptor: int, content: bytes, at: int) -> int:
        if next(written) >= 4:
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, content, at)

    with open_model(directory, **OPTIONS) as model, monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        prompt = turn(model)
        assert not model.keep_context()
        assert "No space left" in model.cautions()[-1]
        assert answer(model, prompt)[0] == expected[0]
    with open_model(directory, **OPTIONS) as model:
        assert answer(model, prompt)[0] == expected[0]


def test_a_file_of_a_running_process_is_left_alone(sparse_model: Path) -> None:
    with open_model(sparse_model, **OPTIONS) as model:
        prompt = turn(model)
        while model.keep_context():
            pass
        with open_model(sparse_model, **OPTIONS) as other:
            assert answer(other, prompt)[1] == 0
    assert len(kept()) == 2


def test_a_directory_that_cannot_be_written_is_said(sparse_model: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    paths.kept_kv_dir().write_text("no directory")
    with open_model(sparse_model, **OPTIONS) as model:
        turn(model)
        model.keep_context()
        assert "no longer kept" in model.cautions()[-1]
