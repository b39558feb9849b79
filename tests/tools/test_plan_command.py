"""`flashllm plan`: from a config.json alone, and from a converted model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flashllm.cli import main

DENSE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FLASHLLM_")]:
        monkeypatch.delenv(name)


def checkpoint(tmp_path: Path, **changes: object) -> Path:
    """A directory with nothing but a config.json."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(DENSE | changes))
    return directory


def test_a_dense_model_is_said_to_be_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoint(tmp_path)
    assert main(["plan", str(source), "--memory", "8GiB", "-c", "2048"]) == 0
    shown = capsys.readouterr().out
    assert "silu is never zero" in shown
    assert "s a token on a disk that reads 1 GB/s" in shown
    assert list(source.iterdir()) == [source / "config.json"]


def test_the_sums_of_a_dense_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(checkpoint(tmp_path)), "--memory", "8GiB", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weights_bytes"]["total"] == pytest.approx(8.03e9 * 2, rel=0.005)
    assert told["weights_bytes"]["ffn"] == 32 * 14336 * 3 * 4096 * 2
    assert (told["plan"]["select"], told["plan"]["lossy"]) == ("all", False)
    moved = told["flash_bytes_a_token"]
    assert moved["pinned_bytes"] == told["plan"]["split"]["slots"] > 0
    assert sum(told["plan"]["split"].values()) <= 8 << 30


@pytest.mark.parametrize(
    ("arguments", "select", "lossy"),
    [(["--act", "relu"], "gate", False), (["--act", "relu", "--select", "all"], "all", False)],
)
def test_the_activation_may_be_given(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    select: str,
    lossy: bool,
) -> None:
    assert main(["plan", str(checkpoint(tmp_path)), "--json", *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sparse"], told["plan"]["select"], told["plan"]["lossy"]) == (True, select, lossy)
    assert told["weights_bytes"]["gate"] == 32 * 14336 * 4096 * 2


def test_without_a_ceiling_it_is_the_smallest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoint(tmp_path)
    assert main(["plan", str(source)]) == 0
    assert "This is the smallest ceiling" in capsys.readouterr().out
    assert main(["plan", str(source), "--memory", "1GiB"]) == 71
    assert "the smallest that works here is" in capsys.readouterr().err


def test_a_converted_model(sparse_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(sparse_model), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["plan"]["select"], told["plan"]["lossy"]) == ("predicted", True)
    assert main(["plan", str(sparse_model)]) == 0
    assert "lossy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"model_type": "unheard-of"}, 65, "unheard-of"),
        ({"hidden_act": "mish"}, 65, "mish"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 65, "dynamic"),
        ({"num_key_value_heads": 5}, 65, "n_kv_heads"),
    ],
)
def test_what_cannot_be_planned_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    code: int,
    named: str,
) -> None:
    assert main(["plan", str(checkpoint(tmp_path, **changes))]) == code
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("changes", "select", "named"),
    [
        ({"hidden_act": "relu"}, "everything", "expected one of"),
        ({"hidden_act": "relu"}, "predicted", "use --select gate"),
        ({}, "gate", "never zero"),
        ({"model_type": "arcee", "hidden_act": "relu2"}, "gate", "no resident gate"),
    ],
)
def test_a_selector_that_the_model_cannot_have(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    select: str,
    named: str,
) -> None:
    assert main(["plan", str(checkpoint(tmp_path, **changes)), "--select", select]) == 2
    assert named in capsys.readouterr().err


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "none")]) == 66
    assert main(["plan", str(tmp_path)]) == 65
    assert "config.json" in capsys.readouterr().err


def test_a_converted_model_is_what_it_is(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(sparse_model), "--dtype", "bf16"]) == 2
    assert "converted already" in capsys.readouterr().err


def test_the_text_fits_a_terminal(
    tmp_path: Path, sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([str(checkpoint(tmp_path))], [str(sparse_model)]):
        assert main(["plan", *arguments]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
