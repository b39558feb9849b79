"""`benchmarks.same_tokens`: what is gone through, and that a difference is found and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import same_tokens
from benchmarks.own_command import CommandError
from benchmarks.same_tokens import AXES, Answers, combinations
from flashllm.engine.local import open_model
from flashllm.engine.sampling import Sampling
from flashllm.errors import UsageError


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Tasks are done in this process, which has no ceiling, and kept."""
    tasks: list[dict[str, Any]] = []

    def apart(task: dict[str, Any]) -> Answers:
        tasks.append(task)
        arguments = {name: value for name, value in task["arguments"].items() if name != "memory"}
        return same_tokens.answer(task | {"arguments": arguments})

    monkeypatch.setattr(same_tokens, "apart", apart)
    monkeypatch.setattr(same_tokens, "ceilings_of", lambda *_: {"smallest": 7, TWICE: 14})
    return tasks


TWICE = "twice the smallest"


def test_a_model_without_a_tokenizer_answers_the_same_everywhere(
    sparse_model: Path, here: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(sparse_model), "--count", "2", "-n", "5", "--context", "40", "--json"]
    assert same_tokens.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is True
    assert len(found["rows"]) == len(here) == len(combinations(every=False))
    assert {row["answers"] for row in found["rows"]} == {4}
    assert {row["tokens"] for row in found["rows"]} == {20}
    assert [task["arguments"].get("memory") for task in here[:3]] == [None, 14, 7]
    windows = {row["setting"]["window"]: row["window"] for row in found["rows"]}
    assert (windows[1], windows[7]) == (1, 7)
    prompt = here[0]["prompts"][1]
    with open_model(sparse_model) as model:
        for number, how in ((1, {}), (3, same_tokens.SAMPLING)):
            generation = model.generate(prompt, 5, Sampling(**how))
            list(generation)
            assert same_tokens.answer(here[0]).ids[number] == generation.ids


def test_a_difference_is_counted_and_an_error(
    sparse_model: Path,
    here: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def other(task: dict[str, Any]) -> Answers:
        here.append(task)
        last = 3 if len(here) == 4 else 2
        return Answers(task["setting"], [[1, 2], [1, last]], 5, 9, 4, 0, 0.5)

    monkeypatch.setattr(same_tokens, "apart", other)
    assert same_tokens.main([str(sparse_model)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[-2].strip() for line in lines[2:-1]] == ["0"] * 3 + ["1"] + ["0"] * 11
    assert lines[-1].endswith("TOKENS DIFFER")


def test_each_axis_is_changed_alone_then_all_at_once() -> None:
    few = combinations(every=False)
    assert few[0] == dict.fromkeys(AXES)
    alone = [setting for setting in few if sum(v is not None for v in setting.values()) == 1]
    assert len(alone) == sum(len(values) - 1 for values in AXES.values())
    assert all(value is not None for value in few[-1].values())
    every = combinations(every=True)
    # Ceilings x threads x overlaps x (windows without a policy, and with its own; lru without one).
    assert len(every) == len({str(setting) for setting in every}) == 3 * 3 * 4 * (3 + 3 + 1)
    assert all(setting in every for setting in few)


def test_a_process_of_its_own_answers_or_says_why_not(sparse_model: Path, tmp_path: Path) -> None:
    task = {"model": str(sparse_model), "setting": {}, "arguments": {"context": 30},
            "prompts": [[5, 6, 7]], "tokens": 3}  # fmt: skip
    assert same_tokens.apart(task) == same_tokens.answer(task)
    with pytest.raises(CommandError, match="there is no such model"):
        same_tokens.apart(task | {"model": str(tmp_path / "absent")})


def test_prompts_are_taken_evenly(demo: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"prompt {number}\n" for number in range(10)), encoding="utf-8")
    assert same_tokens.prompts_of(demo, file, 3) == ["prompt 0", "prompt 3", "prompt 6"]
    assert len(same_tokens.prompts_of(demo, None, 20)) == 20
    with pytest.raises(UsageError, match="10 prompts; 11 are wanted"):
        same_tokens.prompts_of(demo, file, 11)
    conversations = tmp_path / "prompts.jsonl"
    conversations.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n{}\n')
    with pytest.raises(UsageError, match="no messages"):
        same_tokens.prompts_of(demo, conversations, 1)
