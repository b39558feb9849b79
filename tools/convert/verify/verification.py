"""Reads a converted model through and says everything that is wrong with it.

The checksum of a bundle finds the place of damage and bundles that were swapped; SHA-256 covers
every file. Both find accidents; against a forger only the hash of the source helps.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import FlashllmError, LayoutError
from flashllm.flash.checksums import block_checksums
from flashllm.flash.file_names import (
    ACTIVITY_FILE,
    BUNDLES_FILE,
    CHECKSUMS_FILE,
    MANIFEST_FILE,
    MANIFEST_HASH_FILE,
    ORDER_FILE,
    PREDICTORS_FILE,
    RESIDENT_FILE,
)
from flashllm.flash.layout import BundleHeader, read_header
from flashllm.flash.links import links_out
from flashllm.flash.manifest import Manifest, manifest_hash_line, read_manifest
from flashllm.flash.neuron_order import read_order
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.flash.tensor_table import check_resident
from flashllm.progress import Progress, SilentProgress
from flashllm.spec import ModelSpec

from ..output.predictor_files import check_activity, check_predictors
from ..source.files import BLOCK_BYTES, RangeFile
from .report import Problem, VerifyReport

BUNDLE_PROBLEMS_MAX = 1000
"""Bundles that are listed one by one; the rest are counted."""


def verify(directory: Path, progress: Progress | None = None) -> VerifyReport:
    """Read all of a converted model and hold it against its manifest and its checksums.

    What is wrong is reported, not raised; only a directory that is no converted model at all
    raises (`ModelNotFound`, `LayoutError`).
    """
    start_ns = time.monotonic_ns()
    progress = SilentProgress() if progress is None else progress
    check = _Check(Path(directory), progress)
    try:
        check.run()
    finally:
        progress.finish()
    return VerifyReport(
        bundles_checked=check.bundles_checked,
        bytes_checked=check.bytes_checked,
        seconds=(time.monotonic_ns() - start_ns) / 1e9,
        problems=tuple(check.problems),
    )


class _Check:
    """One run over a directory, gathering problems."""

    def __init__(self, directory: Path, progress: Progress) -> None:
        self.directory = directory
        self.problems: list[Problem] = []
        self.bundles_checked = 0
        self.bytes_checked = 0
        self._progress = progress
        self._bundles_damaged = 0

    def run(self) -> None:
        """Everything, from the manifest to the last byte of the bundles."""
        outside = dict(links_out(self.directory)) if self.directory.is_dir() else {}
        for name, end in outside.items():
            self._add(name, f"a link that leads out of the model, to {end}; it is not read")
        if outside.keys() & {MANIFEST_FILE, MANIFEST_HASH_FILE}:
            return
        manifest = self._manifest()
        if manifest is None:
            return
        self._progress.start("checking", sum(record.bytes for record in manifest.files.values()))
        inside = [name for name in manifest.files if name not in outside]
        present = {name for name in inside if self._size_fits(manifest, name)}
        for name in sorted(present):
            digest = self._bundles(manifest) if name == BUNDLES_FILE else self._hash(name)
            if digest is not None and digest != manifest.files[name].sha256:
                self._add(name, "its SHA-256 is not the one in the manifest")
        self._structure(manifest, present)

    def _add(self, file: str, what: str, **place: int) -> None:
        self.problems.append(Problem(file, what, **place))

    def _manifest(self) -> Manifest | None:
        """The manifest, even one that does not match its hash; None when it cannot be read."""
        path = self.directory / MANIFEST_FILE
        if not path.is_file():
            read_manifest(self.directory)
            raise LayoutError(f"{path}: not a file")
        raw = path.read_bytes()
        hash_path = self.directory / MANIFEST_HASH_FILE
        if not hash_path.is_file():
            self._add(MANIFEST_HASH_FILE, "missing")
        elif hash_path.read_bytes() != manifest_hash_line(raw):
            self._add(MANIFEST_FILE, f"does not match {MANIFEST_HASH_FILE}")
        try:
            return Manifest.from_bytes(raw, path)
        except LayoutError as problem:
            self._add(MANIFEST_FILE, str(problem))
            return None

    def _size_fits(self, manifest: Manifest, name: str) -> bool:
        """Whether a file is there; a wrong size is noted, and what there is still read."""
        path, expected_bytes = self.directory / name, manifest.files[name].bytes
        if not path.is_file():
            self._add(name, "missing")
            return False
        size = path.stat().st_size
        if size != expected_bytes:
            self._add(name, f"{size} bytes, but {expected_bytes} were written")
        return True

    def _hash(self, name: str) -> str | None:
        """SHA-256 of a file; None (and a problem) when it cannot be read."""
        digest = hashlib.sha256()
        try:
            with RangeFile((self.directory / name).resolve()) as file:
                for block, _ in self._blocks(file, 0, file.size, BLOCK_BYTES):
                    digest.update(block.data)
        except FlashllmError as problem:
            self._add(name, str(problem))
            return None
        return digest.hexdigest()

    def _blocks(
        self, file: RangeFile, start: int, stop: int, block_bytes: int
    ) -> Iterator[tuple[NDArray[np.uint8], int]]:
        """Blocks of a file and their offsets; each is overwritten by the next."""
        buffer = np.empty(min(block_bytes, max(stop - start, 0)), dtype=np.uint8)
        for offset in range(start, stop, max(block_bytes, 1)):
            block = buffer[: min(block_bytes, stop - offset)]
            file.read_into(block.data, offset)
            file.forget(offset, len(block))
            yield block, offset
            self.bytes_checked += len(block)
            self._progress.advance(len(block))

    def _bundles(self, manifest: Manifest) -> str | None:
        """SHA-256 of the bundle file, its bundles checked on the way."""
        path = (self.directory / BUNDLES_FILE).resolve()
        try:
            header = read_header(path)
            _check_header(header, manifest, path)
            sums = self._checksums(header)
        except FlashllmError as problem:
            self._add(BUNDLES_FILE, str(problem))
            return self._hash(BUNDLES_FILE)
        digest = hashlib.sha256()
        block_bytes = max(1, BLOCK_BYTES // header.stride) * header.stride
        layer_bytes = header.bundles_per_layer * header.stride
        try:
            with RangeFile(path) as file, ThreadPoolExecutor(1) as hasher:
                for block, _ in self._blocks(file, 0, header.data_offset, BLOCK_BYTES):
                    digest.update(block.data)
                for layer in range(header.n_layers):
                    start = header.offset(layer, 0)
                    for block, offset in self._blocks(
                        file, start, start + layer_bytes, block_bytes
                    ):
                        hashed = hasher.submit(digest.update, block.data)
                        self._compare(header, layer, block, offset, sums)
                        hashed.result()
                end = header.data_offset + header.n_layers * layer_bytes
                for block, _ in self._blocks(file, end, header.file_bytes, BLOCK_BYTES):
                    digest.update(block.data)
        except FlashllmError as problem:
            self._add(BUNDLES_FILE, str(problem))
            return None
        more = self._bundles_damaged - BUNDLE_PROBLEMS_MAX
        if more > 0:
            self._add(BUNDLES_FILE, f"{more} more bundles with wrong checksums")
        return digest.hexdigest()

    def _checksums(self, header: BundleHeader) -> NDArray[np.uint32]:
        """The side file as [layers, bundles]."""
        path = self.directory / CHECKSUMS_FILE
        expected_bytes = 4 * header.n_layers * header.bundles_per_layer
        if not path.is_file() or path.stat().st_size != expected_bytes:
            raise LayoutError(f"its bundles cannot be checked: {CHECKSUMS_FILE} is not whole")
        sums = np.frombuffer(path.read_bytes(), dtype="<u4").astype(np.uint32)
        return sums.reshape(header.n_layers, header.bundles_per_layer)

    def _compare(
        self,
        header: BundleHeader,
        layer: int,
        block: NDArray[np.uint8],
        offset: int,
        sums: NDArray[np.uint32],
    ) -> None:
        """Checksums of the bundles in a block, and zeros in what pads them."""
        first = (offset - header.offset(layer, 0)) // header.stride
        found = block_checksums(header, block, layer, first)
        wrong = found != sums[layer, first : first + len(found)]
        self.bundles_checked += len(found)
        for index in np.flatnonzero(wrong).tolist():
            self._add_bundle(header, layer, first + index)

    def _add_bundle(self, header: BundleHeader, layer: int, bundle: int) -> None:
        """A damaged bundle: listed, or only counted once many are."""
        self._bundles_damaged += 1
        if self._bundles_damaged <= BUNDLE_PROBLEMS_MAX:
            self._add(
                BUNDLES_FILE,
                "its checksum is wrong: damaged, or in the wrong place",
                layer=layer,
                bundle=bundle,
                offset=header.offset(layer, bundle),
            )

    def _structure(self, manifest: Manifest, present: set[str]) -> None:
        """Headers and shapes of the other files."""
        checks: tuple[tuple[str, Callable[[Path, ModelSpec], object]], ...] = (
            (RESIDENT_FILE, _check_resident_file),
            (PREDICTORS_FILE, check_predictors),
            (ACTIVITY_FILE, check_activity),
            (ORDER_FILE, read_order),
        )
        for name, run in checks:
            if name in present:
                try:
                    run(self.directory / name, manifest.spec)
                except FlashllmError as problem:
                    self._add(name, str(problem))


def _check_resident_file(path: Path, spec: ModelSpec) -> None:
    """`LayoutError` unless the file holds exactly the tensors of the spec."""
    check_resident(read_tensor_index(path), spec, path)


def _check_header(header: BundleHeader, manifest: Manifest, path: Path) -> None:
    """`LayoutError` unless the header is the one of the manifest's model."""
    expected = BundleHeader.for_spec(manifest.spec, header.file_id)
    shape = ("dtype", "rows_per_neuron", "neurons_per_bundle", "n_layers", "bundles_per_layer",
             "d_model", "down_columns")  # fmt: skip
    for name in shape:
        if getattr(header, name) != getattr(expected, name):
            raise LayoutError(
                f"{path}: {name} is {getattr(header, name)!r}, but the manifest's model has "
                f"{getattr(expected, name)!r}"
            )
