"""`flashllm pull --file`: a model in GGUF out of a repository that holds several."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from flashllm.convert import convert, verify

from flashllm.cli.main import main
from flashllm.flash.manifest import format_requantised, read_manifest
from flashllm.library import pull_gguf, runtime_memory
from flashllm.units import MIB
from tests.library.test_download import use_hub
from tests.support.gguf_models import write_gguf
from tests.support.hub_server import HubServer, Served, serving
from tests.support.tiny import tiny

NAME = "org/tiny-GGUF"
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "head_dim": 32,
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with a model in three parts, one in Q5_0, and a vision tower."""
    for name in [name for name in os.environ if name.startswith("FLASHLLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(pull_gguf, "START_BYTES", 1000)  # less than the header
    runtime_memory._keep(200 * MIB)
    monkeypatch.chdir(tmp_path)
    tiny("qwen3_moe", **SIZES).save_pretrained(tmp_path / "source")
    served = Served({"mmproj-f16.gguf": b"x", "README.md": b"x"})
    for kind, parts in (("Q4_0", 3), ("Q5_0", 1)):
        (tmp_path / kind).mkdir()
        write_gguf(tmp_path / "source", tmp_path / kind, "qwen3moe", kind, parts=parts)
        for path in (tmp_path / kind).glob("*.gguf"):
            served.files[path.name.replace("model", kind.lower())] = path.read_bytes()
            path.rename(path.with_name(path.name.replace("model", kind.lower())))
    with serving() as running:
        running.repositories[NAME] = served
        use_hub(monkeypatch, running, tmp_path)
        yield running
        huggingface_hub.close_session()


def part(number: int) -> str:
    return f"q4_0-0000{number}-of-00003.gguf"


def test_the_plan_is_made_of_beginnings(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME, "--file", part(2), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    sizes = [len(server.repositories[NAME].files[part(number)]) for number in (1, 2, 3)]
    assert (told["fetch_bytes"], told["files"], told["precision"]) == (sum(sizes), 3, "int4")
    assert "2 layers of 5 experts" in told["shape"]
    for number, size in zip((1, 2, 3), sizes, strict=True):
        ranges = [one.headers["range"] for one in server.sent(part(number))]
        assert all(int(asked.rpartition("-")[2]) < size - 1 for asked in ranges)
    assert not (tmp_path / "hub").exists()


def test_fetched_and_converted(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME, "--file", part(3), "--convert", "--progress", "none"]) == 0
    made = tmp_path / "home" / "models" / "q4_0.flash"
    assert capsys.readouterr().out.strip() == str(made)
    convert(tmp_path / "Q4_0" / part(1), tmp_path / "expected")
    for name in ("resident.safetensors", "ffn.crc32c"):
        assert (made / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert verify(made).ok
    # What was fetched stays: another conversion needs no network.
    before = len(server.requests)
    assert main(["pull", NAME, "--file", part(1), "--progress", "none"]) == 0
    shown = capsys.readouterr()
    path = Path(shown.out.strip())
    assert path.name == part(1)
    assert shown.err.endswith(f"flashllm: next: flashllm convert {path}\n")
    assert not any("/cdn/" in one.path for one in server.requests[before:] if one.method == "HEAD")
    assert main(["convert", str(path), "again", "--progress", "none"]) == 0
    assert verify(tmp_path / "again").ok


def test_what_would_be_rounded_again_is_known_before_it_is_fetched(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pull", NAME, "--file", "q5_0.gguf", "--convert", "model", "--progress", "none"]
    assert main(command) == 65
    said = capsys.readouterr().err
    assert f"{NAME}: q5_0.gguf: these weights would be rounded a second time" in said
    assert not (tmp_path / "hub").exists()
    assert main([*command, "--requantise"]) == 0
    assert format_requantised(read_manifest(tmp_path / "model").source) == "requantised from Q5_0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"choose one with --file NAME: cut.gguf \(2.0 KiB\), .* q5_0.gguf \(130 KiB\)"),
        (["--file", "other.gguf"], "has no file other.gguf in GGUF; those that it has: cut"),
        (["--file", "README.md"], "has no file README.md in GGUF"),
        (["--file", "lost-00001-of-00002.gguf"], "of which lost-00002-of-00002.gguf is not there"),
        (["--file", "odd.gguf"], "odd.gguf: .*GGUF"),
        (["--file", "cut.gguf"], "cut.gguf: .*the file ends at byte 2000"),
    ],
)
def test_files_that_cannot_be_taken(
    server: HubServer, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    files = server.repositories[NAME].files
    files |= {"lost-00001-of-00002.gguf": b"x", "odd.gguf": b"x" * 3000}
    files["cut.gguf"] = files["q5_0.gguf"][:2000]
    assert main(["pull", NAME, "--dry-run", *arguments]) == 65
    error = capsys.readouterr().err
    assert re.search(message, error), error
