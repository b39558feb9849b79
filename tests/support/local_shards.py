"""A source of shards without a network: a checkpoint in a directory, copied file by file."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from flashllm.convert import WeightFiles, named_weights, weight_files_of
from safetensors.torch import load_file, save_file

from flashllm.errors import DownloadFailed
from flashllm.flash.manifest import FileRecord
from flashllm.progress import Progress


def split(source: Path, directory: Path, is_second: Callable[[str], bool]) -> Path:
    """The checkpoint of one file in two, the second of which has the tensors of some names."""
    directory.mkdir()
    tensors = load_file(source / "model.safetensors")
    weight_map = {name: f"model-{2 if is_second(name) else 1}.safetensors" for name in tensors}
    for file in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        save_file(part, directory / file)
    index = {"weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copyfile(source / "config.json", directory / "config.json")
    return directory


class LocalShards:
    """Sends the shards of a directory, one copy at a time."""

    def __init__(self, source: Path, identity: Mapping[str, str] | None = None) -> None:
        leading = named_weights(lambda name: (source / name).exists())
        assert leading is not None
        self._source = source
        self.identity = dict(identity or {"repository": "org/tiny", "commit": "0" * 40})
        self.files: WeightFiles = weight_files_of(source, leading)
        self.shard_bytes = {name: (source / name).stat().st_size for name in self.files.shards}
        self.fetched: list[str] = []
        self.most_here = 0
        self.fail_at: str | None = None
        self._here = Path()

    def prepare(self, directory: Path) -> Path:
        # The name of a snapshot is the repository's, as for one that was fetched into the cache.
        self._here = directory / "models--org--tiny" / "snapshots" / self.identity["commit"]
        self._here.mkdir(parents=True, exist_ok=True)
        for path in self._source.iterdir():
            if path.name not in self.files.shards:
                shutil.copyfile(path, self._here / path.name)
        return self._here

    def read_start(self, name: str, nbytes: int) -> bytes:
        with open(self._source / name, "rb") as file:
            return file.read(nbytes)

    def fetch(self, name: str, progress: Progress) -> FileRecord:
        if name == self.fail_at:
            raise DownloadFailed(f"{name}: no connection")
        raw = (self._source / name).read_bytes()
        (self._here / name).write_bytes(raw)
        self.fetched.append(name)
        here = sum((self._here / shard).exists() for shard in self.files.shards)
        self.most_here = max(self.most_here, here)
        progress.advance(len(raw))
        return FileRecord(len(raw), hashlib.sha256(raw).hexdigest())

    def drop(self, name: str) -> None:
        (self._here / name).unlink()
