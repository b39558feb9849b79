"""The Hugging Face cache: what could be converted, and why the rest could not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashllm.library.hf_cache import cache_directories, checkpoints
from flashllm.library.models import Checkpoint
from tests.fuzz.parsers.target import CORPUS
from tests.support.checkpoints import all_bytes, write_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(
    root: Path, name: str = "models--org--tiny", commit: str = COMMIT, **changes: Any
) -> tuple[Path, Path]:
    """A repository as the cache has it: files in blobs, links in a snapshot, a branch."""
    repository = root / name
    made = write_checkpoint(root / "made", **changes)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    for index, file in enumerate(sorted(made.iterdir())):
        blob = repository / "blobs" / f"{commit[:8]}{index}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    made.rmdir()
    return repository, snapshot


def found(root: Path) -> list[Checkpoint]:
    return list(checkpoints({"HF_HUB_CACHE": str(root)}))


def test_a_checkpoint_that_can_be_converted(tmp_path: Path) -> None:
    repository, snapshot = put(tmp_path)
    before = all_bytes(repository / "blobs")
    (one,) = found(tmp_path)
    assert (one.path, one.name, one.revision) == (snapshot, "org/tiny", "main (0123456)")
    assert (one.problem, one.remark) == ("", "")
    assert one.features == "2 layers of 20 neurons, relu"
    assert one.size_bytes == (snapshot / "model.safetensors").stat().st_size
    assert all_bytes(repository / "blobs") == before


def test_shards_and_several_revisions(tmp_path: Path) -> None:
    put(tmp_path, shards=3)
    repository, snapshot = put(tmp_path, commit="f" * 40)
    (repository / "refs" / "main").write_text(COMMIT)
    first, second = found(tmp_path)
    shards = (repository / "snapshots" / COMMIT).glob("*.safetensors")
    assert first.size_bytes == sum(path.stat().st_size for path in shards)
    assert (first.revision, second.revision) == ("main (0123456)", "fffffff")
    assert (first.problem, second.problem, second.path) == ("", "", snapshot)


def test_models_in_gguf(tmp_path: Path) -> None:
    repository, snapshot = put(tmp_path)
    for path in (*snapshot.iterdir(), *(repository / "blobs").iterdir()):
        path.unlink()
    raw = (CORPUS / "gguf_header" / "experts.gguf").read_bytes() + bytes(1 << 14)
    (repository / "blobs" / "a").write_bytes(raw)
    for name in ("tiny-Q8_0.gguf", "mmproj-tiny.gguf"):
        (snapshot / name).symlink_to(Path("../../blobs/a"))
    (one,) = found(tmp_path)
    assert (one.problem, one.size_bytes) == ("", len(raw))
    assert one.features == "1 layers of 2 experts, 1 a token, silu"
    (snapshot / "tiny-Q4_0.gguf").symlink_to(Path("../../blobs/a"))
    assert "several models in GGUF" in found(tmp_path)[0].problem


def test_why_not(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path, model_type="unheard-of")
    assert "unheard-of" in found(tmp_path)[0].problem
    config = snapshot / "config.json"
    config.unlink()
    assert "no config.json" in found(tmp_path)[0].problem
    config.write_text(json.dumps({"model_type": "opt", "quantization_config": {"bits": 4}}))
    assert "quantization_config is set" in found(tmp_path)[0].problem


def test_files_that_are_missing(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path, shards=2)
    shard = sorted(snapshot.glob("*.safetensors"))[0]
    shard.resolve().unlink()
    assert "is the download complete?" in found(tmp_path)[0].problem
    for path in [*snapshot.glob("model*")]:
        path.unlink()
    assert "no weights" in found(tmp_path)[0].problem


def test_pickles_only(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path)
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    (one,) = found(tmp_path)
    assert "pickles" in one.remark
    assert one.problem == ""  # the converter takes them, without running anything


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_links_that_leave_the_cache_are_refused(tmp_path: Path, name: str) -> None:
    _, snapshot = put(tmp_path / "hub")
    outside = tmp_path / "outside"
    (snapshot / name).resolve().rename(outside)
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(outside)
    (one,) = found(tmp_path / "hub")
    assert "a link that leads out of the checkpoint" in one.problem


@pytest.mark.parametrize("place", ["", "snapshots", "blobs", f"snapshots/{COMMIT}"])
def test_directories_that_are_links_are_refused(tmp_path: Path, place: str) -> None:
    repository, _ = put(tmp_path / "hub")
    moved = tmp_path / "moved"
    (repository / place).rename(moved)
    (repository / place).symlink_to(moved)
    (one,) = found(tmp_path / "hub")
    assert one.problem


def test_an_error_of_ours_is_a_problem_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("flashllm.library.hf_cache._weights", fail)
    put(tmp_path)
    (one,) = found(tmp_path)
    assert one.problem == "unexpected: ZeroDivisionError: a bug"


def test_whatever_else_lies_there(tmp_path: Path) -> None:
    (tmp_path / "datasets--org--data").mkdir()
    (tmp_path / "models--file").write_text("")
    (tmp_path / "models--org--\x1b[31mred").mkdir()
    (tmp_path / ".locks").mkdir()
    repository, snapshot = put(tmp_path)
    (repository / "refs" / "evil").write_bytes(b"../../../etc/passwd\xff")
    (repository / "refs" / "loop").symlink_to("loop")
    (snapshot.parent / "not a commit").mkdir()
    names = {one.name: one for one in found(tmp_path)}
    assert set(names) == {"file", "org/red", "org/tiny"}
    assert names["file"].problem == names["org/red"].problem == "nothing of it was fetched"
    assert not found(tmp_path / "nowhere")


def test_what_is_not_looked_at_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / f"models--org--{name}").mkdir()
    monkeypatch.setattr("flashllm.library.hf_cache.ENTRIES_MAX", 3)
    assert len(found(tmp_path)) == 3
    monkeypatch.setattr("flashllm.library.hf_cache.ENTRIES_MAX", 2)
    *looked_at, cache = found(tmp_path)
    assert len(looked_at) == 2
    assert (cache.path, cache.name) == (tmp_path, tmp_path.name)
    assert cache.problem == "has more than 2 entries; the others were not looked at"


@pytest.mark.parametrize(
    ("limit", "words"), [("SNAPSHOTS_MAX", "snapshots"), ("REFS_MAX", "names of snapshots (refs)")]
)
def test_what_is_not_looked_at_of_a_repository_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    repository, snapshot = put(tmp_path)
    (snapshot.parent / ("f" * 40)).mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr(f"flashllm.library.hf_cache.{limit}", 2)
    looked_at = found(tmp_path)
    assert len(looked_at) == 2
    monkeypatch.setattr(f"flashllm.library.hf_cache.{limit}", 1)
    *_, last = found(tmp_path)
    assert (last.path, last.name, last.revision) == (repository, "org/tiny", "")
    assert last.problem == f"has more than 1 {words}; the others were not looked at"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/x"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_where_the_cache_is(environment: dict[str, str], expected: str) -> None:
    assert cache_directories(environment) == [Path(expected)]
