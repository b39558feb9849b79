"""Pulling a checkpoint: the plan, the files that are needed, and conversion shard by shard."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from flashllm.convert import convert, verify

from flashllm.errors import (
    ChecksumMismatch,
    DownloadFailed,
    Interrupted,
    NotACheckpoint,
    NotEnoughSpace,
    UnsupportedModel,
    UsageError,
)
from flashllm.flash.manifest import read_manifest
from flashllm.library import hub
from flashllm.library import pull as pulling
from flashllm.library.conversion_preview import preview
from flashllm.library.hf_cache import checkpoints
from flashllm.library.pull import Making, RemoteCheckpoint
from flashllm.library.pull_plan import check_room, plan_pull
from flashllm.library.scan import Conditions
from flashllm.options import ModelOptions
from flashllm.progress import SilentProgress
from flashllm.units import MIB
from tests.library.test_download import use_hub
from tests.support.checkpoints import all_bytes, write_checkpoint
from tests.support.hub_server import COMMIT, HubServer, Served, serving

NAME = "org/tiny"
KNOWN = Conditions(200 * MIB, ModelOptions(memory=1 << 30))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with a checkpoint in three shards, and files that no conversion needs."""
    with serving() as running:
        source = write_checkpoint(tmp_path / "source", shards=3, ffn_dim=512, hidden_size=96,
                                  word_embed_proj_dim=96)  # fmt: skip
        (source / "tokenizer_config.json").write_text("{}")
        (source / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
        (source / "README.md").write_text("read me")
        (source / "tf_model.h5").write_bytes(b"of no use")
        running.add(NAME, source)
        use_hub(monkeypatch, running, tmp_path)
        yield running
        huggingface_hub.close_session()


def examined(name: str = NAME) -> RemoteCheckpoint:
    return pulling.examine(hub.look(name))


class Told(SilentProgress):
    """Phases, and how far they came."""

    def __init__(self) -> None:
        self.phases: dict[str, list[int]] = {}
        self.warnings: list[str] = []

    def start(self, phase: str, total_bytes: int) -> None:
        self._at = self.phases[phase] = [total_bytes, 0]

    def advance(self, nbytes: int) -> None:
        self._at[1] += nbytes

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def test_only_what_a_conversion_needs_is_fetched(server: HubServer, tmp_path: Path) -> None:
    told = Told()
    path = pulling.fetch(examined(), told)
    names = {one.name for one in path.iterdir()}
    assert names == {one.name for one in (tmp_path / "source").iterdir()} - {
        "README.md", "tf_model.h5",
    }  # fmt: skip
    for name in names:
        assert (path / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
    ((phase, (total, done)),) = told.phases.items()
    assert (phase, done) == (f"fetching {NAME}", total)
    assert total == sum((path / name).stat().st_size for name in names)
    (found,) = checkpoints()
    assert (found.name, found.path, found.problem) == (NAME, path, "")
    assert found.revision == "main (0123456)"
    convert(path, tmp_path / "out")
    assert read_manifest(tmp_path / "out").name == NAME


def test_what_is_here_is_not_asked_for_again(server: HubServer) -> None:
    pulling.fetch(examined(), SilentProgress())
    checkpoint = examined()
    server.requests.clear()
    told = Told()
    pulling.fetch(checkpoint, told)
    assert server.requests == []
    assert told.phases == {}


def test_an_interruption_keeps_what_came(server: HubServer) -> None:
    checkpoint = examined()

    class Stopping(Told):
        def advance(self, nbytes: int) -> None:
            super().advance(nbytes)
            if self._at[1] > self._at[0] / 2:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="what was fetched stays") as caught:
        pulling.fetch(checkpoint, Stopping())
    assert caught.value.exit_code == 75
    assert pulling.find_cached(NAME, "main") is None  # no half of it is taken for all
    before = pulling.cached(checkpoint)
    here = sum(before.bytes_here(file) for file in checkpoint.files)
    assert 0 < here < checkpoint.bytes
    told = Told()
    pulling.fetch(checkpoint, told)
    assert [*told.phases.values()] == [[checkpoint.bytes - here] * 2]
    found = pulling.find_cached(NAME, "main")
    assert found is not None
    assert pulling.find_cached(NAME, COMMIT[:3]) is None
    for revision in (COMMIT, COMMIT[:7]):
        assert pulling.find_cached(NAME, revision) == found
    for other in (("org/other", "main"), (NAME, "dev")):
        assert pulling.find_cached(*other) is None


def test_the_plan_is_that_of_the_checkpoint_itself(server: HubServer, tmp_path: Path) -> None:
    checkpoint = examined()
    asked = len(server.requests)
    plan = plan_pull(checkpoint, tmp_path / "out", Making(), KNOWN, converts=True, streams=True)
    assert len(server.requests) == asked
    from flashllm.library.conversion_options import ConvertOptions

    same = preview(tmp_path / "source", tmp_path / "out", ConvertOptions(), KNOWN)
    assert plan.converted.smallest_ceiling_bytes == same.smallest_ceiling_bytes
    assert plan.converted.disk_bytes == same.disk_bytes
    assert (plan.fits, plan.trains, plan.select) == (True, False, "predicted")
    assert plan.fetch_bytes == checkpoint.bytes
    assert plan.here_bytes == 0
    largest = max(file.size for file in checkpoint.shards)
    assert plan.at_once_bytes == same.disk_bytes + largest
    kept = plan_pull(checkpoint, tmp_path / "out", Making(), KNOWN, converts=False, streams=False)
    assert kept.trains
    now = plan_pull(checkpoint, tmp_path / "out", Making(), KNOWN, converts=True, streams=False)
    assert not now.trains
    assert kept.at_once_bytes > plan.at_once_bytes
    assert json.loads(json.dumps(plan.to_json()))["repository"] == NAME
    pulling.fetch(checkpoint, SilentProgress())
    again = plan_pull(checkpoint, tmp_path / "out", Making(), KNOWN, converts=False, streams=False)
    assert again.here_bytes == again.fetch_bytes


def test_what_is_too_large_is_told_with_what_would_fit(server: HubServer, tmp_path: Path) -> None:
    checkpoint = examined()
    place = tmp_path / "out"
    needs = plan_pull(checkpoint, place, Making(), KNOWN, converts=True, streams=True).converted
    narrow = plan_pull(
        checkpoint, place, Making(dtype="int4"), KNOWN, converts=True, streams=True
    ).converted
    assert needs.smallest_ceiling_bytes is not None
    assert narrow.smallest_ceiling_bytes is not None
    assert narrow.smallest_ceiling_bytes < needs.smallest_ceiling_bytes
    tight = Conditions(200 * MIB, ModelOptions(memory=narrow.smallest_ceiling_bytes))
    plan = plan_pull(checkpoint, place, Making(), tight, converts=True, streams=True)
    assert plan.fits is False
    assert plan.narrower == (("int4", narrow.smallest_ceiling_bytes),)
    none = Conditions(200 * MIB, ModelOptions(memory=MIB))
    assert plan_pull(checkpoint, place, Making(), none, converts=True, streams=True).narrower == ()
    unknown = plan_pull(checkpoint, place, Making(), Conditions(None), converts=True, streams=True)
    assert unknown.fits is None


def test_disks_that_are_too_small(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    checkpoint = examined()
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=3, f_frsize=4096))
    plan = plan_pull(checkpoint, tmp_path / "out", Making(), KNOWN, converts=False, streams=False)
    with pytest.raises(NotEnoughSpace, match=r"are to come, 12\.0 KiB are free.*--convert"):
        check_room(plan, converts=False, streams=False)
    check_room(plan, converts=True, streams=True)
    pulled = dataclasses.replace(plan, here_bytes=plan.fetch_bytes)
    with pytest.raises(NotEnoughSpace, match="the converted model takes about"):
        check_room(pulled, converts=True, streams=False)
    with pytest.raises(NotEnoughSpace):
        pulling.fetch(checkpoint, SilentProgress())
    assert not (tmp_path / "hub").exists()


# What there may be instead of a checkpoint.


def serve(server: HubServer, *names: str, tags: tuple[str, ...] = (), **files: bytes) -> None:
    content = dict.fromkeys(names, b"x") | files
    server.repositories["org/odd"] = Served(content, tags=tags)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "no config.json, and no other file either"),
        (("README.md",), "no config.json"),
        (("config.json",), "no weights"),
        (
            ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf", "mmproj-b.gguf"),
            r"models in GGUF; choose one with --file NAME: a-00001-of-00002.gguf \(2 B\),"
            r" b.gguf \(1 B\); look",
        ),
        (("config.json", "consolidated.safetensors"), "safetensors under names"),
        (("config.json", "consolidated.00.pth"), "pickles of another layout"),
        (("config.json", "tf_model.h5"), "weights for TensorFlow"),
        (("config.json", "flax_model.msgpack"), "weights for Flax"),
        (("adapter_config.json", "adapter_model.safetensors"), r"an adapter \(LoRA\)"),
        (("config.json", "\x1b[2J.gguf"), "GGUF"),
    ],
)
def test_nothing_to_convert(server: HubServer, names: tuple[str, ...], words: str) -> None:
    serve(server, *names)
    with pytest.raises(NotACheckpoint, match=words) as caught:
        examined("org/odd")
    assert "look for a repository with model.safetensors" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_what_it_was_made_from_is_told(server: HubServer) -> None:
    serve(server, "x.gguf", tags=("gguf", "base_model:org/tiny", "base_model:quantized:org/tiny"))
    with pytest.raises(NotACheckpoint, match=r"it was made from org/tiny: flashllm pull org/tiny$"):
        examined("org/odd")
    serve(server, "x.gguf", tags=("base_model:\x1b[31m",))
    with pytest.raises(NotACheckpoint, match="look for a repository"):
        examined("org/odd")


def test_a_family_that_is_not_known_is_told_by_the_name_of_the_repository(
    server: HubServer,
) -> None:
    config = b'{"model_type": "unheard-of"}'
    server.repositories["org/odd"] = Served({"config.json": config, "model.safetensors": b"x"})
    with pytest.raises(
        UnsupportedModel, match=r"^org/odd: config\.json: model_type is 'unheard-of'"
    ):
        examined("org/odd").describe()


def test_an_index_that_names_what_is_not_there(server: HubServer) -> None:
    server.repositories[NAME].files.pop("model-00002-of-00003.safetensors")
    with pytest.raises(NotACheckpoint, match=r"names model-00002-of-00003\.safetensors, which"):
        examined()
    index = b'{"weight_map": {"a": "../../x.safetensors"}}'
    server.repositories[NAME].files["model.safetensors.index.json"] = index
    with pytest.raises(NotACheckpoint, match=r"^org/tiny: model.safetensors.index.json: a: "):
        examined()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.model"])
def test_small_files_that_are_none(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for limit in ("CONFIG_BYTES_MAX", "INDEX_BYTES_MAX", "TOKENIZER_BYTES_MAX"):
        monkeypatch.setattr(pulling, limit, 10_000)
    server.repositories[NAME].files[name] = b" " * 10_001
    with pytest.raises(NotACheckpoint, match=rf"{name}: 10,001 bytes; at most 10,000 are accepted"):
        examined()


# Converting while it comes.


def whole(tmp_path: Path, **options: Any) -> dict[str, bytes]:
    """What a conversion of the same repository in the cache makes."""
    path = pulling.fetch(examined(), SilentProgress())
    convert(path, tmp_path / "whole", **options)
    shutil.rmtree(tmp_path / "hub")
    return all_bytes(tmp_path / "whole")


def by_shards(destination: Path, making: Making | None = None) -> dict[str, bytes]:
    pulling.fetch_and_convert(examined(), destination, making or Making(), SilentProgress())
    return all_bytes(destination)


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_the_model_is_that_of_all_files_at_once(
    server: HubServer, tmp_path: Path, dtype: str | None
) -> None:
    expected = whole(tmp_path, dtype=dtype)
    assert by_shards(tmp_path / "out", Making(dtype=dtype)) == expected
    assert verify(tmp_path / "out").ok
    assert not (tmp_path / "hub").exists()  # the cache is left alone
    assert not list(tmp_path.glob("out.*"))
    assert len(server.sent("model-00001-of-00003.safetensors")) > 0


def test_all_of_it_in_the_cache_is_converted_from_there(server: HubServer, tmp_path: Path) -> None:
    path = pulling.fetch(examined(), SilentProgress())
    server.requests.clear()
    checkpoint = examined()
    server.requests.clear()
    pulling.fetch_and_convert(checkpoint, tmp_path / "out", Making(), SilentProgress())
    assert server.requests == []
    assert verify(tmp_path / "out").ok
    assert (path / "config.json").exists()


def sent_ranges(server: HubServer, name: str) -> list[str | None]:
    """Parts of a file that were asked for, the beginning with its header left out."""
    found = [one.headers.get("range") for one in server.sent(name) if "/cdn/" in one.path]
    return [part for part in found if part is None or not part.startswith("bytes=0-")]


def test_it_goes_on_at_the_next_shard(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    expected = whole(tmp_path)
    second = "model-00002-of-00003.safetensors"
    checkpoint = examined()

    server.requests.clear()
    server.faults.cut[second] = [10**9, 50_000]  # the first answer is the header's
    server.faults.status[second] = [0, 0, 503, 503]
    with pytest.raises(DownloadFailed, match=rf"{second}: .*answers 503"):
        pulling.fetch_and_convert(checkpoint, tmp_path / "out", Making(), SilentProgress())
    record = json.loads((tmp_path / "out.partial-pull" / "record.json").read_text())
    assert list(record["shards"]) == ["model-00001-of-00003.safetensors"]
    server.faults.status.clear()
    server.faults.cut.clear()
    server.requests.clear()
    assert by_shards(tmp_path / "out") == expected
    assert sent_ranges(server, "model-00001-of-00003.safetensors") == []
    (again,) = sent_ranges(server, second)
    assert again is not None
    assert again.startswith("bytes=")


def test_a_wrong_hash_of_a_shard(server: HubServer, tmp_path: Path) -> None:
    expected = whole(tmp_path)
    name = "model-00003-of-00003.safetensors"
    server.faults.damage[name] = len(server.repositories[NAME].files[name]) - 1
    with pytest.raises(ChecksumMismatch, match=name):
        by_shards(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    server.faults.damage.clear()
    assert by_shards(tmp_path / "out") == expected


def test_another_commit_does_not_go_on_with_it(server: HubServer, tmp_path: Path) -> None:
    from flashllm.errors import CannotCreate

    name = "model-00003-of-00003.safetensors"
    server.faults.status[name] = [0, 500, 500]
    with pytest.raises(DownloadFailed):
        by_shards(tmp_path / "out")
    server.faults.status.clear()
    served = server.repositories[NAME]
    served.branches["main"] = served.commit = "f" * 40
    with pytest.raises(CannotCreate, match=f"commit {COMMIT} instead of {'f' * 40}"):
        by_shards(tmp_path / "out")


@pytest.mark.parametrize(
    ("making", "words"),
    [
        (Making(predictors="train"), "--predictors train: needs the whole checkpoint"),
        (Making(predictors="checkpoint"), "--predictors checkpoint"),
        (Making(calibration=Path("text.txt")), "--calibration text.txt"),
        (Making(order="coactivation"), "--order coactivation"),
        (Making(predictor_dtype="int8"), "--predictor-dtype int8"),
    ],
)
def test_what_needs_all_of_it_at_once(
    server: HubServer, tmp_path: Path, making: Making, words: str
) -> None:
    with pytest.raises(UsageError, match=rf"{words}.*add --keep-source"):
        pulling.fetch_and_convert(examined(), tmp_path / "out", making, SilentProgress())
    assert not list(tmp_path.glob("out*"))


def test_pickles(server: HubServer, tmp_path: Path) -> None:
    files = server.repositories[NAME].files
    for name in [name for name in files if name.startswith("model")]:
        del files[name]
    files["pytorch_model.bin"] = b"a pickle"
    checkpoint = examined()
    assert checkpoint.weights.pickled
    assert plan_pull(
        checkpoint, tmp_path / "out", Making(), KNOWN, converts=False, streams=False
    ).pickled
    with pytest.raises(UsageError, match="weights are pickles, which can carry programs"):
        pulling.check_pickles(checkpoint, Making())
    pulling.check_pickles(checkpoint, Making(allow_pickle=True))
    with pytest.raises(UsageError, match=r"weights are pickles.*--keep-source"):
        pulling.fetch_and_convert(checkpoint, tmp_path / "out", Making(), SilentProgress())
    path = pulling.fetch(checkpoint, SilentProgress())
    assert (path / "pytorch_model.bin").read_bytes() == b"a pickle"


def test_shards_that_lie_in_git_itself(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small files the hub tells git's hash only; the manifest has their SHA-256 all the same."""
    monkeypatch.setattr("tests.support.hub_server.LARGE", ())
    assert by_shards(tmp_path / "out") == whole(tmp_path)
