"""Rows in a block: the same answers as one after the other, whatever ends, fails or stops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flashllm.batch.block import RowsInBlock
from flashllm.batch.encoded_row import EncodedRow
from flashllm.batch.row import Row, RowFailure
from flashllm.batch.row_by_row import RowByRow
from flashllm.cli.main import main
from flashllm.engine.answer import Prompt
from flashllm.engine.generation import Generation
from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from flashllm.errors import ModelError
from tests.cli.test_batch_command import demo_rows, lines_of, write


def mixed_rows() -> list[dict[str, object]]:
    """Rows of the demo, some of them sampled, one that cannot be answered."""
    rows = demo_rows()
    for number, row in enumerate(rows):
        if number % 4 == 3:
            row["temperature"] = 0.8
    too_long = {"id": "too long", "prompt": "What does " + "very " * 3000 + "mean?"}
    return [*rows[:7], too_long, *rows[7:]]


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("block")
    rows = write(folder, mixed_rows())
    assert main(["batch", str(rows), str(folder / "answers"), str(demo)]) == 65
    return rows, (folder / "answers").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ["--block", "2"],
        ["--block", "7", "--select", "oracle"],
        ["--block", "40"],
        ["--block", "3", "--policy", "lru"],
        ["--block", "3", "--overlap", "none", "--io-threads", "1", "--schedule", "zigzag"],
        ["--block", "5", "--schedule", "diagonal", "-n", "20"],
        ["--block", "4", "--kv-memory", "2MiB", "-c", "160"],
    ],
)
def test_answers_are_those_of_one_by_one(
    one_by_one: tuple[Path, bytes], demo: Path, tmp_path: Path, options: list[str]
) -> None:
    rows, expected = one_by_one
    alone = [one for one in options if one in ("--select", "oracle", "-n", "20", "-c", "160")]
    if alone:
        main(["batch", str(rows), str(tmp_path / "alone"), str(demo), *alone])
        expected = (tmp_path / "alone").read_bytes()
    assert main(["batch", str(rows), str(tmp_path / "answers"), str(demo), *options]) == 65
    assert (tmp_path / "answers").read_bytes() == expected


def test_a_prompt_that_repeats_an_answer_is_computed_as_a_prompt(demo: Path) -> None:
    """With predictors, keys and values of decoded tokens have other bits than a prompt's."""

    def answer(model: Model, *prompts: list[int]) -> bytes:
        rows = [
            EncodedRow(
                number,
                Row(number + 1, number, tuple(ids), (), True, 12, Sampling(), ()),
                Prompt(ids, [], (), 0),
            )
            for number, ids in enumerate(prompts)
        ]
        assert len(list(RowByRow(model, lambda: False, lambda: None).answers(rows))) == len(rows)
        return model.decoder.context.keys_values.encoded(2, 0, len(prompts[-1])).tobytes()

    with open_model(demo, select="predicted") as model:
        begin = model.tokenizer.encode("What does ocean mean?")
        repeating = [*begin, *model.generate(begin, 12).complete().ids, *begin]
        model.forget()
        expected = answer(model, repeating)
        model.forget()
        assert answer(model, begin, repeating) == expected


def test_as_finished_has_the_same_lines(
    one_by_one: tuple[Path, bytes], demo: Path, tmp_path: Path
) -> None:
    rows, expected = one_by_one
    out = tmp_path / "answers"
    assert main(["batch", str(rows), str(out), str(demo), "--block", "6", "--as-finished"]) == 65
    found = out.read_bytes()
    assert sorted(found.splitlines()) == sorted(expected.splitlines())
    assert found != expected


def test_the_summary_counts_all_tokens(
    one_by_one: tuple[Path, bytes], demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, _ = one_by_one
    found = []
    for block in ("1", "5"):
        out = tmp_path / block
        main(["batch", str(rows), str(out), str(demo), "--block", block, "--json"])
        found.append(json.loads(capsys.readouterr().out))
    for name in ("completion_tokens", "prompt_tokens", "answered", "errors"):
        assert found[0][name] == found[1][name], name
    assert found[0]["decode"]["tokens"] == found[1]["decode"]["tokens"]
    written = sum(line["usage"]["completion_tokens"] for line in lines_of(out) if "usage" in line)
    assert found[1]["completion_tokens"] == written


def written_rows(lengths: list[int]) -> list[EncodedRow]:
    made = []
    for number, length in enumerate(lengths):
        ids = [5 + (number * 7 + at * at) % 80 for at in range(20)]
        row = Row(number + 1, number, tuple(ids), (), True, length, Sampling(), ())
        made.append(EncodedRow(number, row, Prompt(ids, [], (), 0)))
    return made


@pytest.mark.parametrize("bad", [4, 5])
def test_a_row_that_fails_beside_others_fails_alone(
    sparse_model: Path, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its prompt, while others got tokens beside it, of which one was the last."""
    rows = written_rows([9, 3, 12, 5, 7, 8, 6, 4])
    sample = Generation.sample

    def failing(each: Generation, logits: NDArray[np.float32]) -> tuple[int, str]:
        if each.prompt == rows[bad].prompt.ids:
            raise ModelError("not a number")
        return sample(each, logits)

    monkeypatch.setattr(Generation, "sample", failing)
    found = []
    for contexts in (1, 3):
        with open_model(sparse_model, contexts=contexts, chunk_tokens=16) as model:
            kind = RowByRow if contexts == 1 else RowsInBlock
            answered = {one.number: one.result for one in kind(model, no, nothing).answers(rows)}
            assert sorted(answered) == list(range(len(rows)))
            assert isinstance(answered[bad], RowFailure)
            found.append([answered[number] for number in range(len(rows))])
    assert found[0] == found[1]


def test_an_answer_that_fails_beside_a_prompt_ends_the_batch(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = written_rows([9, 2, 12])
    sample = Generation.sample

    def failing(each: Generation, logits: NDArray[np.float32]) -> tuple[int, str]:
        if each.prompt == rows[0].prompt.ids and len(each.ids) == 2:
            raise ModelError("not a number")
        return sample(each, logits)

    monkeypatch.setattr(Generation, "sample", failing)
    with open_model(sparse_model, contexts=2) as model:
        block = RowsInBlock(model, no, nothing)
        with pytest.raises(ModelError, match="not a number"):
            list(block.answers(rows))


def no() -> bool:
    return False


def nothing() -> None:
    pass


@pytest.mark.parametrize("block", ["0", "-1", "1025", "many"])
def test_blocks_that_there_are_not(
    one_by_one: tuple[Path, bytes],
    demo: Path,
    tmp_path: Path,
    block: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, _ = one_by_one
    assert main(["batch", str(rows), str(tmp_path / "out"), str(demo), f"--block={block}"]) == 2
    assert "--block" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
