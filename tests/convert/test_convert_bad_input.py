"""Every bad checkpoint gives one error that names what is wrong, and leaves nothing behind."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert

from flashllm.errors import (
    FlashllmError,
    ModelNotFound,
    ModelTruncated,
    NotACheckpoint,
    TensorMismatch,
    UnsupportedModel,
    UsageError,
)
from tests.support.checkpoints import (
    CONFIG,
    random_tensors,
    write_checkpoint,
    write_raw,
    write_tensors,
)

FC1 = "model.decoder.layers.1.fc1.weight"


def refuse(
    source: Path, error: type[FlashllmError], match: str, destination: Path | None = None
) -> None:
    """The conversion raises exactly `error`, and nothing lies beside the source afterwards."""
    before = sorted(source.parent.iterdir())
    with pytest.raises(error, match=match) as caught:
        convert(source, destination or source.parent / "out", allow_pickle=True)
    assert type(caught.value) is error
    assert sorted(source.parent.iterdir()) == before


def test_nothing_there(tmp_path: Path) -> None:
    refuse(tmp_path / "absent", ModelNotFound, "no such checkpoint")


def test_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", NotACheckpoint, "no config.json")
    (tmp_path / "file").write_bytes(b"")
    refuse(tmp_path / "file", NotACheckpoint, "not a directory")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text(json.dumps(CONFIG))
    refuse(tmp_path / "bare", NotACheckpoint, "no weights")


def test_a_converted_model_is_no_checkpoint(tmp_path: Path) -> None:
    convert(write_checkpoint(tmp_path / "source"), tmp_path / "converted")
    refuse(tmp_path / "converted", NotACheckpoint, "converted model already")


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model_type": "gpt2"}, UnsupportedModel, "'gpt2'; supported: opt"),
        ({"model_type": None}, UnsupportedModel, "supported: opt"),
        ({"model_type": ["opt"]}, UnsupportedModel, "supported: opt"),
        ({"activation_function": "mish"}, UnsupportedModel, "'mish'; supported: relu, fatrelu"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModel, "quantization_config"),
        (
            {"num_attention_heads": 5},
            UnsupportedModel,
            "num_attention_heads is 5; it does not divide",
        ),
        ({"hidden_size": 12.0}, NotACheckpoint, "hidden_size is 12.0"),
        ({"hidden_size": True}, NotACheckpoint, "hidden_size is True"),
        ({"hidden_size": -12}, NotACheckpoint, "hidden_size is -12"),
        ({"hidden_size": 10**30}, NotACheckpoint, "hidden_size"),
        ({"num_hidden_layers": 0}, NotACheckpoint, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 5000}, NotACheckpoint, "expected 1 to 1024"),
        ({"vocab_size": None}, NotACheckpoint, "vocab_size is missing"),
        ({"enable_bias": 1}, NotACheckpoint, "enable_bias is 1; expected true or false"),
        ({"eos_token_id": 40}, NotACheckpoint, "eos_token_id is 40"),
        ({"eos_token_id": [2, True]}, NotACheckpoint, "eos_token_id"),
        ({"bos_token_id": -1}, NotACheckpoint, "bos_token_id is -1"),
        ({"flashllm_synthetic": "yes"}, NotACheckpoint, "flashllm_synthetic"),
    ],
)
def test_config(
    tmp_path: Path, changes: dict[str, Any], error: type[FlashllmError], match: str
) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    refuse(source, error, match)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"model_type": "opt", "model_type": "opt"}', '{"x": NaN}', "\ufeff{}",
     '{"x": ' + "[" * 50 + "]" * 50 + "}", "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_config_that_is_no_plain_json(tmp_path: Path, text: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "config.json").write_text(text, encoding="utf-8")
    refuse(source, NotACheckpoint, "config.json")


def test_tensors_absent_extra_misshapen(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    absent = {name: values for name, values in tensors.items() if name != FC1}
    refuse(
        write_checkpoint(tmp_path / "absent", tensors=absent),
        TensorMismatch,
        "missing: decoder.layers.1.fc1.weight",
    )
    extra = {**tensors, "score.weight": np.zeros((2, 12), np.float32)}
    refuse(
        write_checkpoint(tmp_path / "extra", tensors=extra),
        TensorMismatch,
        "not expected: score.weight",
    )
    turned = {**tensors, FC1: tensors[FC1].T.copy()}
    refuse(
        write_checkpoint(tmp_path / "turned", tensors=turned),
        TensorMismatch,
        re.escape(
            f"{FC1} in model.safetensors has shape [12, 20], but config.json asks for [20, 12]"
        ),
    )
    twice = {**tensors, FC1.removeprefix("model."): tensors[FC1]}
    refuse(write_checkpoint(tmp_path / "twice", tensors=twice), TensorMismatch, "same tensor")


def test_config_and_tensors_contradict(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    more = write_checkpoint(tmp_path / "more", tensors=tensors, num_hidden_layers=3)
    refuse(more, TensorMismatch, "missing: decoder.layers.2")
    fewer = write_checkpoint(tmp_path / "fewer", tensors=tensors, num_hidden_layers=1)
    refuse(fewer, TensorMismatch, "not expected: .*and 10 more")
    untied = write_checkpoint(tmp_path / "untied", tensors=tensors, tie_word_embeddings=False)
    refuse(untied, TensorMismatch, "missing: lm_head.weight")
    vocab = write_checkpoint(tmp_path / "vocab", tensors=tensors, vocab_size=41)
    refuse(vocab, TensorMismatch, re.escape("[40, 12], but config.json asks for [41, 12]"))


def test_a_head_that_is_tied_and_differs(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    head = tensors["model.decoder.embed_tokens.weight"].copy()
    head[-1, -1] += 1
    source = write_checkpoint(tmp_path / "source", tensors={**tensors, "lm_head.weight": head})
    refuse(source, TensorMismatch, "lm_head.weight and model.decoder.embed_tokens.weight are tied")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [FC1, FC1.replace("fc1", "fc2"), FC1.replace("weight", "bias")])
def test_weights_that_are_no_numbers(tmp_path: Path, name: str, bad: float) -> None:
    tensors = random_tensors(CONFIG)
    tensors[name].flat[7] = bad
    source = write_checkpoint(tmp_path / "source", tensors=tensors)
    refuse(source, TensorMismatch, f"tensor {name}: holds NaN or infinity")


def test_weights_too_large_for_the_type_asked_for(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors[FC1][3, 4] = 70000.0
    source = write_checkpoint(tmp_path / "source", tensors=tensors)
    with pytest.raises(TensorMismatch, match=f"{FC1}: holds values too large for f16"):
        convert(source, tmp_path / "out", dtype="f16")
    assert not (tmp_path / "out").exists()
    convert(source, tmp_path / "out", dtype="bf16")


def test_types_that_are_no_floats(tmp_path: Path) -> None:
    tensors: dict[str, Any] = random_tensors(CONFIG)
    for dtype in (np.float64, np.int64):
        tensors[FC1] = tensors[FC1].astype(dtype)
        source = write_checkpoint(tmp_path / np.dtype(dtype).name, tensors=tensors)
        refuse(source, TensorMismatch, f"{FC1} in model.safetensors is of type [fi]64")


@pytest.mark.parametrize("cut", [1, "half", -1])
def test_truncated_weights(tmp_path: Path, cut: int | str) -> None:
    source = write_checkpoint(tmp_path / "source")
    path = source / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2] if cut == "half" else raw[:cut])
    refuse(source, ModelTruncated, "model.safetensors")


def test_truncated_pickle(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    path = source / "pytorch_model.bin"
    torch.save({n: torch.from_numpy(t) for n, t in random_tensors(CONFIG).items()}, path)
    raw = path.read_bytes()
    for end in (1, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:end])
        refuse(source, NotACheckpoint, "torch refuses")


class Malicious:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.touch, (Path(self.target),)


@pytest.mark.parametrize("protocol", ["torch", "pickle"])
def test_a_pickle_runs_no_code(tmp_path: Path, protocol: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    content = {"weight": Malicious(str(tmp_path / "owned"))}
    if protocol == "torch":
        torch.save(content, source / "pytorch_model.bin")
    else:
        (source / "pytorch_model.bin").write_bytes(pickle.dumps(content))
    refuse(source, NotACheckpoint, "torch refuses")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "content", [[torch.zeros(2)], {"a": "text"}, {3: torch.zeros(2)}, {"a": {"b": torch.zeros(1)}}]
)
def test_a_pickle_of_something_else(tmp_path: Path, content: Any) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    torch.save(content, source / "pytorch_model.bin")
    refuse(source, NotACheckpoint, "expected a")


def test_missing_shard(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=3)
    (source / "model-00002-of-00003.safetensors").unlink()
    refuse(source, NotACheckpoint, "model-00002-of-00003.safetensors: missing")


def test_index_and_shards_disagree(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    moved = {**index["weight_map"], FC1: "model-00001-of-00002.safetensors"}
    moved["model.decoder.layers.0.fc1.bias"] = "model-00002-of-00002.safetensors"
    lacking = {name: file for name, file in index["weight_map"].items() if name != FC1}
    adding = {**index["weight_map"], "ghost": "model-00001-of-00002.safetensors"}
    for weight_map in (moved, lacking, adding):
        path.write_text(json.dumps({"weight_map": weight_map}))
        refuse(source, TensorMismatch, "the index says .*, the shards say")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    tensors = random_tensors(CONFIG)
    names = sorted(tensors)
    write_tensors(
        source / "model-00001-of-00002.safetensors",
        {name: tensors[name] for name in [*names[0::2], names[1]]},
    )
    refuse(source, TensorMismatch, f"tensor {re.escape(names[1])} is in .*00001.* and in .*00002")


def test_duplicate_names_in_one_header(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    write_raw(source / "model.safetensors", f'{{"a":{entry},"a":{entry}}}', bytes(4))
    refuse(source, NotACheckpoint, "'a' occurs twice")
    # In one pass, however many there are: comparing all with all would take an hour.
    names = ",".join(f'"{number}":0' for number in (*range(500_000), 499_999))
    write_raw(source / "model.safetensors", f"{{{names}}}", b"")
    refuse(source, NotACheckpoint, "'499999' occurs twice")


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd.safetensors", "sub/x.safetensors", "..", "x.bin", "",
     "a\\b.safetensors", ".hidden.safetensors", "x.safetensors\n", 3, None],
)  # fmt: skip
def test_names_of_shards(tmp_path: Path, name: Any) -> None:
    write_tensors(tmp_path / "secret.safetensors", random_tensors(CONFIG))
    source = write_checkpoint(tmp_path / "source", shards=2)
    weight_map = dict.fromkeys(random_tensors(CONFIG), name)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refuse(source, NotACheckpoint, "no name of a shard")


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "nothing"])
def test_index_without_a_map(tmp_path: Path, index: str) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    (source / "model.safetensors.index.json").write_text(index)
    refuse(source, NotACheckpoint, "index.json")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.model"])
def test_links_that_lead_out(tmp_path: Path, file: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    source = write_checkpoint(tmp_path / "source")
    (source / file).rename(outside / file)
    (source / file).symlink_to(outside / file)
    refuse(source, NotACheckpoint, "a link that leads out")


def test_links_that_stay_inside_and_links_to_nowhere(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "model.safetensors").rename(source / "real.safetensors")
    (source / "model.safetensors").symlink_to("real.safetensors")
    convert(source, tmp_path / "out")
    (source / "real.safetensors").unlink()
    refuse(source, NotACheckpoint, "model.safetensors: missing", tmp_path / "other")


@pytest.mark.parametrize("options", [{"dtype": "f8"}, {"calibration": Path("text.txt")}])
def test_settings_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(UsageError):
        convert(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_missing_tokenizer_is_a_warning(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "tokenizer.model").unlink()
    command = [sys.executable, "-m", "tools.convert", str(source), str(tmp_path / "out")]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert "no tokenizer" in result.stderr
    assert result.stdout.strip() == str(tmp_path / "out")
    again = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert again.returncode == 73
    assert "exists already" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_source_that_changes_meanwhile(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")

    class Meddler:
        def start(self, phase: str, total_bytes: int) -> None:
            if phase == "feed-forward bundles":
                with open(source / "model.safetensors", "r+b") as file:
                    file.seek(-1, 2)
                    file.write(b"\0")

        def advance(self, nbytes: int) -> None: ...
        def warn(self, text: str) -> None: ...
        def finish(self) -> None: ...

    with pytest.raises(NotACheckpoint, match="changed while"):
        convert(source, tmp_path / "out", progress=Meddler())
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
