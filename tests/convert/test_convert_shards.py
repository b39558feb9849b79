"""A checkpoint that comes shard by shard: the same model, on less disk, whatever interrupts."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert, convert_shards, verify
from flashllm.convert.output import placing
from flashllm.convert.source import arriving

from flashllm.errors import (
    CannotCreate,
    DestinationExists,
    DownloadFailed,
    FlashllmError,
    Interrupted,
    NotACheckpoint,
    NotEnoughSpace,
    TensorMismatch,
)
from flashllm.flash.manifest import FileRecord, read_manifest
from flashllm.progress import Progress, SilentProgress
from tests.support.checkpoints import CONFIG, all_bytes, random_tensors, write_checkpoint
from tests.support.local_shards import LocalShards
from tests.support.stops import stop_at
from tests.support.tiny import tiny

ROOT = Path(__file__).parents[2]


def whole(source: Path, place: Path, **options: Any) -> dict[str, bytes]:
    """What a conversion of everything at once makes of the same files."""
    snapshot = place / "hub" / "models--org--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(source, snapshot)
    convert(snapshot, place / "whole", **options)
    return all_bytes(place / "whole")


def by_shards(source: Path, destination: Path, **options: Any) -> dict[str, bytes]:
    shards = LocalShards(source)
    convert_shards(shards, destination, **options)
    assert shards.fetched == list(shards.files.shards)
    assert shards.most_here == 1
    assert verify(destination).ok
    return all_bytes(destination)


def write_opt(directory: Path, shards: int = 3, **changes: Any) -> None:
    write_checkpoint(directory, shards=shards, **changes)


def write_family(
    model_type: str, save_original_format: bool = True, **sizes: Any
) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        model = tiny(model_type, **sizes)
        model.save_pretrained(
            directory, max_shard_size="12KB", save_original_format=save_original_format
        )
        assert len(list(directory.glob("*.safetensors"))) > 2

    return write


def write_backwards(directory: Path) -> None:
    """Shards with the last layers first, and each layer over several of them."""
    write_checkpoint(directory, shards=5)
    index = directory / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    names = sorted(set(values["weight_map"].values()))
    turned = dict(zip(names, reversed(names), strict=True))
    for name in names:
        (directory / name).rename(directory / f"{name}.old")
    for name in names:
        (directory / f"{name}.old").rename(directory / turned[name])
    values["weight_map"] = {tensor: turned[at] for tensor, at in values["weight_map"].items()}
    index.write_text(json.dumps(values))


EXPERTS: dict[str, Any] = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "num_key_value_heads": 2,
}
GATED = {"intermediate_size": 20, "num_key_value_heads": 2}
WRITERS: dict[str, Callable[[Path], None]] = {
    "one file": lambda directory: write_opt(directory, 0),
    "shards": write_opt,
    "a shard a tensor": lambda directory: write_opt(directory, 36),
    "backwards": write_backwards,
    "narrow": lambda directory: write_opt(directory, word_embed_proj_dim=8),
    "f16": lambda directory: write_opt(directory, dtype=np.float16),
    "fused": write_family("falcon", ffn_hidden_size=20),
    "gate and up in one": write_family("phi3", **GATED),
    "gate in memory": write_family("llama", hidden_act="relu", **GATED),
    "gate on flash": write_family("llama", **GATED),
    "experts": write_family("qwen3_moe", **EXPERTS),
    "experts, fused": write_family("qwen3_moe", save_original_format=False, **EXPERTS),
    "norms plus one": write_family("nemotron", hidden_size=32, num_attention_heads=4, **GATED),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_the_model_is_that_of_the_whole_checkpoint(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "source")
    assert by_shards(tmp_path / "source", tmp_path / "out") == whole(tmp_path / "source", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out", "hub", "whole"}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_in_every_encoding(tmp_path: Path, dtype: str) -> None:
    write_opt(tmp_path / "source", 7)
    options = {"dtype": dtype, "resident_dtype": "f16"}
    found = by_shards(tmp_path / "source", tmp_path / "out", **options)
    assert found == whole(tmp_path / "source", tmp_path, **options)


def test_blocks_and_files_of_several_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "CHECKED_BYTES", 1 << 20)
    monkeypatch.setattr(arriving, "START_BYTES", 64)  # so that no header comes at once
    sizes = {"hidden_size": 384, "word_embed_proj_dim": 384, "ffn_dim": 3000}
    write_opt(tmp_path / "source", 4, **sizes)
    assert by_shards(tmp_path / "source", tmp_path / "out") == whole(tmp_path / "source", tmp_path)


class Told(SilentProgress):
    """What was told of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, list[int]] = {}
        self.warnings: list[str] = []

    def start(self, phase: str, total_bytes: int) -> None:
        self._told = self.phases[phase] = [total_bytes, 0]

    def advance(self, nbytes: int) -> None:
        assert nbytes >= 0
        self._told[1] += nbytes

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.parametrize("name", ["shards", "gate and up in one", "one file"])
def test_progress_reaches_its_end(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "source")
    told = Told()
    convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out", progress=told)
    assert list(told.phases) == ["fetching and converting", "checksums of the model"]
    for total, done in told.phases.values():
        assert total == done > 0


def kept(tmp_path: Path) -> Path:
    return tmp_path / "out.partial-pull"


def test_what_fails_goes_on_at_the_next_shard(tmp_path: Path) -> None:
    write_opt(tmp_path / "source", 4)
    expected = whole(tmp_path / "source", tmp_path)
    for index, name in enumerate(LocalShards(tmp_path / "source").files.shards):
        shards = LocalShards(tmp_path / "source")
        shards.fail_at = name
        with pytest.raises(DownloadFailed):
            convert_shards(shards, tmp_path / "out")
        # What was in by then is not fetched again, and nothing of it is left but the model.
        assert shards.fetched == list(shards.files.shards)[max(index - 1, 0) : index]
        record = json.loads((kept(tmp_path) / "record.json").read_text())
        assert sorted(record["shards"]) == list(shards.files.shards)[:index]
        assert not list(kept(tmp_path).rglob("source/**/*.safetensors"))
        assert not (tmp_path / "out").exists()
    last = LocalShards(tmp_path / "source")
    convert_shards(last, tmp_path / "out")
    assert last.fetched == list(last.files.shards)[-1:]
    assert all_bytes(tmp_path / "out") == expected
    assert not kept(tmp_path).exists()


class StopAt(SilentProgress):
    """Raises when its `count`-th message comes."""

    def __init__(self, count: int) -> None:
        self.left = count

    def start(self, phase: str, total_bytes: int) -> None:
        self._tick()

    def advance(self, nbytes: int) -> None:
        self._tick()

    def _tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_ctrl_c_at_every_message(tmp_path: Path) -> None:
    write_opt(tmp_path / "source")
    expected = whole(tmp_path / "source", tmp_path)
    convert_shards(
        LocalShards(tmp_path / "source"), tmp_path / "out", progress=(counted := StopAt(-1))
    )
    messages = -1 - counted.left
    assert messages > 20
    shutil.rmtree(tmp_path / "out")
    for message in range(1, messages + 1):
        with pytest.raises(Interrupted, match=r"so far stays in .*out\.partial-pull.*go on"):
            convert_shards(
                LocalShards(tmp_path / "source"), tmp_path / "out", progress=StopAt(message)
            )
        assert not (tmp_path / "out").exists()
        assert kept(tmp_path).is_dir()
        if message % 5 == 0:
            convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")
            assert all_bytes(tmp_path / "out") == expected
            shutil.rmtree(tmp_path / "out")
        shutil.rmtree(kept(tmp_path), ignore_errors=True)


@pytest.mark.parametrize("after", [False, True])
def test_a_stop_at_every_call_says_what_is_there(tmp_path: Path, after: bool) -> None:
    write_opt(tmp_path / "source", shards=2)
    out = tmp_path / "out"
    found = {"complete": 0, "kept": 0, "nothing": 0}
    for count in range(1, 1000):
        shards = LocalShards(tmp_path / "source")
        with stop_at(count, after=after) as stopped:
            try:
                convert_shards(shards, out)
                said = ""
            except Interrupted as error:
                said = str(error)
        if not stopped():
            break
        if out.exists():
            assert verify(out).ok
            left = f"; {kept(tmp_path)}, what is left of its source, can go"
            assert said in (
                "",
                f"stopped when the model was complete: it is at {out}, to be used"
                + (left if kept(tmp_path).exists() else ""),
            )
            found["complete"] += 1
            shutil.rmtree(out)
        elif kept(tmp_path).exists():
            assert said.startswith(f"stopped; what is written so far stays in {kept(tmp_path)}. ")
            found["kept"] += 1
            if count % 10 == 0:
                convert_shards(LocalShards(tmp_path / "source"), out)
                shutil.rmtree(out)
        else:
            assert said == (
                f"stopped before anything was written to {out}. Run the same command again"
            )
            found["nothing"] += 1
        shutil.rmtree(kept(tmp_path), ignore_errors=True)
        assert {path.name for path in tmp_path.iterdir()} == {"source"}
    assert found["kept"] >= 20
    assert found["complete"] >= 2
    assert found["nothing"] >= 1


def test_a_last_sync_that_fails_says_that_the_model_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_opt(tmp_path / "source", shards=2)
    real = os.fsync

    def failing(descriptor: int) -> None:
        if (tmp_path / "out").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(CannotCreate, match=r"out: the model is complete, but .* durable"):
        convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")
    assert verify(tmp_path / "out").ok
    assert not kept(tmp_path).exists()


KILLED = """
import os, sys
from pathlib import Path
from tests.support.local_shards import LocalShards
from flashllm.convert import convert_shards

left = 0

def killing(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return real(*arguments, **options)
    return call

for name in ("pwrite", "fsync", "rename", "replace", "mkdir", "unlink", "ftruncate"):
    setattr(os, name, killing(getattr(os, name)))
def convert():
    convert_shards(LocalShards(Path(sys.argv[1])), Path(sys.argv[2]))

# All is imported once; each line read is a process that ends at that call.
for line in sys.stdin:
    if not (child := os.fork()):
        left = int(line)
        convert()
        print(-left, flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_killed_before_any_call_it_goes_on(tmp_path: Path) -> None:
    write_opt(tmp_path / "source")
    expected = whole(tmp_path / "source", tmp_path)

    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "source")]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, str(tmp_path / "out")], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(left: int) -> int:
            print(left, file=process.stdin, flush=True)
            return int(process.stdout.readline())

        calls = run(0)
        assert calls > 50
        assert process.stdout.readline() == "0\n"
        shutil.rmtree(tmp_path / "out")
        for left in range(1, calls, max(1, calls // 10)):
            assert run(left) == 9
            if not (tmp_path / "out").exists():
                convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")
            assert all_bytes(tmp_path / "out") == expected
            shutil.rmtree(tmp_path / "out")
            shutil.rmtree(kept(tmp_path), ignore_errors=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "posix_fallocate", "rename"])
def test_a_write_that_fails_is_an_error_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    write_opt(tmp_path / "source")
    expected = whole(tmp_path / "source", tmp_path)
    real, calls = getattr(os, call), 0

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    failures: list[CannotCreate] = []
    for fails_at in (1, 2, 7, 20):  # noqa: B007  which `failing` looks at
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")
            except CannotCreate as error:
                failures.append(error)
        if not (tmp_path / "out").exists():
            convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")
        assert all_bytes(tmp_path / "out") == expected
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(kept(tmp_path), ignore_errors=True)
    least = {"pwrite": 4, "fsync": 3, "posix_fallocate": 2, "rename": 1}[call]
    assert len(failures) >= least
    assert {isinstance(one, NotEnoughSpace) for one in failures} == {number == errno.ENOSPC}


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_opt(tmp_path / "source")
    shards = LocalShards(tmp_path / "source")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10, f_frsize=4096))
    with pytest.raises(NotEnoughSpace, match="are needed, 40,960 are free"):
        convert_shards(shards, tmp_path / "out")
    assert shards.fetched == []
    assert not kept(tmp_path).exists()


def test_little_more_than_the_result_is_on_disk(tmp_path: Path) -> None:
    sizes = {"hidden_size": 384, "word_embed_proj_dim": 384, "ffn_dim": 1536}
    write_opt(tmp_path / "source", 12, num_hidden_layers=6, **sizes)

    class Measuring(LocalShards):
        most_bytes = 0

        def drop(self, name: str) -> None:
            found = sum(p.stat().st_blocks * 512 for p in kept(tmp_path).rglob("*") if p.is_file())
            self.most_bytes = max(self.most_bytes, found)
            super().drop(name)

    shards = Measuring(tmp_path / "source")
    convert_shards(shards, tmp_path / "out", dtype="f16")
    result = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    source = sum(shards.shard_bytes.values())
    assert shards.most_bytes < result + 1.1 * max(shards.shard_bytes.values())
    assert shards.most_bytes < 0.7 * source


def tied(**changed: float) -> dict[str, Any]:
    """A head beside the embedding that it is tied to."""
    tensors: dict[str, Any] = random_tensors(CONFIG)
    head = tensors["model.decoder.embed_tokens.weight"].copy()
    head[3, 3] += changed.get("by", 0.0)
    return tensors | {"lm_head.weight": head}


def test_tied_tensors_of_different_shards(tmp_path: Path) -> None:
    write_opt(tmp_path / "source", 9, tensors=tied())
    assert by_shards(tmp_path / "source", tmp_path / "out") == whole(tmp_path / "source", tmp_path)
    write_opt(tmp_path / "other", 9, tensors=tied(by=0.5))
    with pytest.raises(TensorMismatch, match="are tied, but they differ"):
        convert_shards(LocalShards(tmp_path / "other"), tmp_path / "out-2")


def test_another_checkpoint_does_not_go_on_with_it(tmp_path: Path) -> None:
    write_opt(tmp_path / "source")
    shards = LocalShards(tmp_path / "source")
    shards.fail_at = shards.files.shards[-1]
    with pytest.raises(DownloadFailed):
        convert_shards(shards, tmp_path / "out")
    other = LocalShards(tmp_path / "source", {"repository": "org/tiny", "commit": "1" * 40})
    with pytest.raises(CannotCreate, match=f"commit {'0' * 40} instead of {'1' * 40}.*remove"):
        convert_shards(other, tmp_path / "out")
    with pytest.raises(CannotCreate, match="dtype unset instead of int8"):
        convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out", dtype="int8")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "made": 1}'])
def test_a_record_that_is_none(tmp_path: Path, raw: bytes) -> None:
    write_opt(tmp_path / "source")
    kept(tmp_path).mkdir()
    (kept(tmp_path) / "record.json").write_bytes(raw)
    with pytest.raises(CannotCreate, match=r"no record of a conversion.*remove"):
        convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")


def test_weights_that_are_gone_are_fetched_again(tmp_path: Path) -> None:
    write_opt(tmp_path / "source")
    expected = whole(tmp_path / "source", tmp_path)
    shards = LocalShards(tmp_path / "source")
    shards.fail_at = shards.files.shards[-1]
    with pytest.raises(DownloadFailed):
        convert_shards(shards, tmp_path / "out")
    (kept(tmp_path) / "model" / "ffn.bundles").unlink()
    again = LocalShards(tmp_path / "source")
    convert_shards(again, tmp_path / "out")
    assert again.fetched == list(again.files.shards)
    assert all_bytes(tmp_path / "out") == expected


def test_two_at_once(tmp_path: Path) -> None:
    write_opt(tmp_path / "source")

    class Second(LocalShards):
        def drop(self, name: str) -> None:
            with pytest.raises(CannotCreate, match="another process is writing it"):
                convert_shards(LocalShards(self._source), tmp_path / "out")
            super().drop(name)

    convert_shards(Second(tmp_path / "source"), tmp_path / "out")
    assert verify(tmp_path / "out").ok
    with pytest.raises(DestinationExists):
        convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")


class Damaging(LocalShards):
    """Sends other bytes than its headers promised."""

    def __init__(self, source: Path, damage: Callable[[Path], None]) -> None:
        super().__init__(source)
        self._damage = damage

    def fetch(self, name: str, progress: Progress) -> FileRecord:
        record = super().fetch(name, progress)
        self._damage(self._here / name)
        return record


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def swapped(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"fc1.weight", b"fc9.weight"))


def infinite(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-4] + np.float32(np.inf).tobytes())


@pytest.mark.parametrize("damage", [cut, swapped, infinite])
def test_a_shard_that_is_not_what_was_promised(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write_opt(tmp_path / "source", 0)
    with pytest.raises(FlashllmError):
        convert_shards(Damaging(tmp_path / "source", damage), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_headers_are_checked_before_anything_is_fetched(tmp_path: Path) -> None:
    write_opt(tmp_path / "source")
    index = tmp_path / "source" / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    first = next(iter(values["weight_map"]))
    del values["weight_map"][first]
    index.write_text(json.dumps(values))
    shards = LocalShards(tmp_path / "source")
    with pytest.raises(TensorMismatch, match="the index says nothing"):
        convert_shards(shards, tmp_path / "out")
    name = shards.files.shards[0]
    (tmp_path / "source" / name).write_bytes(b"no safetensors file at all")
    with pytest.raises(NotACheckpoint, match="this is no safetensors file"):
        convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")
    assert shards.fetched == []


def test_the_hashes_of_the_source_are_those_of_what_came(tmp_path: Path) -> None:
    write_opt(tmp_path / "source")
    convert_shards(LocalShards(tmp_path / "source"), tmp_path / "out")
    recorded = read_manifest(tmp_path / "out").source["files"]
    for name, record in recorded.items():
        raw = (tmp_path / "source" / name).read_bytes()
        assert record == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert read_manifest(tmp_path / "out").name == "org/tiny"
