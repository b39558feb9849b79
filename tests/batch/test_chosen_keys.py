"""Rows in a block that see some of their keys and values: each chooses as it does alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flashllm.convert import convert

import flashllm
from flashllm.cli.main import main
from tests.cli.test_batch_command import lines_of, write

FOLDER = Path(flashllm.__file__).parent / "demo_moe"
CHOICES = ["--kv-policy", "infinigen", "--kv-budget", "15%", "--spec-start-layer", "1", "-n", "12"]


@pytest.fixture(scope="module")
def demo_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with experts that comes with the project, converted."""
    directory = tmp_path_factory.mktemp("moe") / "model"
    convert(FOLDER, directory)
    return directory


@pytest.mark.parametrize("kv_memory", [[], ["--kv-memory", "2MiB", "-c", "200"]])
def test_experts_and_keys_in_4_bits(demo_moe: Path, tmp_path: Path, kv_memory: list[str]) -> None:
    words = ("ocean", "river", "music", "winter")
    asked = "What does {0} mean? What does {1} mean? Tell me what {0} is. " * 4
    rows = [
        {"id": word, "prompt": asked.format(word, words[number - 1])}
        for number, word in enumerate(words)
    ]
    given, exact = write(tmp_path, rows), tmp_path / "exact"
    encoding = ["--kv-dtype", "int4"]
    main(["batch", str(given), str(exact), str(demo_moe), *encoding, "-n", "12"])
    answers = []
    for block, more in (("1", []), ("3", kv_memory)):
        out = tmp_path / f"block{block}"
        options = [*encoding, *CHOICES, "--block", block, *more]
        assert main(["batch", str(given), str(out), str(demo_moe), *options]) == 0
        assert len(lines_of(out)) == len(rows)
        answers.append(out.read_bytes())
    assert answers[0] == answers[1]
    # They do choose: not all answers are those of full attention.
    assert answers[0] != exact.read_bytes()
    assert json.loads(answers[0].splitlines()[0])["id"] == "ocean"
