"""Converts a checkpoint that is elsewhere: one shard at a time comes, is written, and goes.

The result is the one that `pipeline.convert` makes of the whole checkpoint, byte for byte, but
disk holds little more than it: one shard. What was written stays after an interruption, and the
next run goes on at the next shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import flashllm
from flashllm.errors import Interrupted
from flashllm.flash.file_names import BUNDLES_FILE, RESIDENT_FILE
from flashllm.flash.layout import BundleHeader
from flashllm.flash.manifest import LAYOUT_VERSION, FileRecord
from flashllm.progress import Progress, SilentProgress

from .families.config import read_config
from .families.families import family_of
from .families.spec_from_config import Overrides, doubtful_activation, model_name, spec_of
from .output.destination import check_destination, check_space
from .output.inspection import Job, converted_bytes, look, not_tied
from .output.interruption import format_stopped_pull
from .output.kept_partial import KeptPartial, kept_partial
from .output.placing import PlacedWeights, check_bundles
from .output.provenance import bundles_id, make_manifest, source_names
from .output.tensor_checksums import hash_tensors
from .output.tokenizer_files import write_tokenizer
from .output.writing import blocks_of, resident_bytes, write_manifest
from .source.arriving import ArrivingShard, ShardSource, arriving_shard
from .source.checkpoint import Checkpoint, check_weight_map
from .source.files import sha256_of, source_file


def convert_shards(
    source: ShardSource,
    destination: Path,
    *,
    dtype: str | None = None,
    act: str | None = None,
    fatrelu_threshold: float | None = None,
    resident_dtype: str | None = None,
    requantise: bool = False,
    progress: Progress | None = None,
) -> None:
    """Turn the checkpoint that `source` sends into a converted model at `destination`.

    Options as of `convert`; there is nothing here that needs all of the checkpoint at once, as
    training predictors does. The destination is complete afterwards, or absent: any of the errors
    in `flashllm.errors`, `Interrupted` on Ctrl-C. Then, and after most errors, the same call goes
    on where this one ended.
    """
    progress = SilentProgress() if progress is None else progress
    destination = Path(destination).absolute()
    overrides = Overrides(
        dtype, act, fatrelu_threshold, resident_dtype, requantise=requantise or None
    )
    check_destination(destination)
    made = {
        **source.identity,
        **overrides.to_json(),
        "layout_version": LAYOUT_VERSION,
        "flashllm": flashllm.__version__,
    }
    with _kept(destination, progress), kept_partial(destination, made) as partial:
        arriving = _inspect(source, partial, overrides, progress)
        _take_shards(source, partial, arriving, progress)
        _finish(partial, arriving.job, progress)


@dataclass(frozen=True, slots=True)
class _Arriving:
    """A checkpoint whose headers are known."""

    job: Job
    shards: dict[str, ArrivingShard]


@contextlib.contextmanager
def _kept(destination: Path, progress: Progress) -> Iterator[None]:
    """Ctrl-C as an error of ours that says what is there."""
    existed = os.path.lexists(destination)
    try:
        try:
            yield
        finally:
            progress.finish()
    except KeyboardInterrupt as stop:
        raise Interrupted(format_stopped_pull(destination, existed)) from stop


def _inspect(
    source: ShardSource, partial: KeptPartial, overrides: Overrides, progress: Progress
) -> _Arriving:
    """Checks the checkpoint by its small files and the headers of its shards."""
    directory = source.prepare(partial.source)
    config = read_config(directory)
    family = family_of(config)
    spec = spec_of(config, family, overrides)
    name = model_name(directory)
    if (warning := doubtful_activation(name, spec, overrides)) is not None:
        progress.warn(warning)
    shards = {
        shard: arriving_shard(source, directory, shard, partial.parts)
        for shard in source.files.shards
    }
    checkpoint = Checkpoint(directory, shards, source.files.index)
    check_weight_map(source.files, checkpoint)
    job = look(name, config, family, spec, checkpoint, overrides)
    for copy, original in job.assignment.copies:
        if (copy.dtype, copy.shape) != (original.dtype, original.shape):
            raise not_tied(directory, copy, original)
    return _Arriving(job, shards)


def _take_shards(
    source: ShardSource, partial: KeptPartial, arriving: _Arriving, progress: Progress
) -> None:
    """Fetches, writes and drops every shard that is not in yet."""
    job, sizes = arriving.job, source.shard_bytes
    if not _is_begun(partial.model, job):
        partial.shards.clear()
        partial.copies.clear()
    left = [name for name in arriving.shards if name not in partial.shards]
    needed = max((sizes[name] for name in left), default=0)
    needed += sum(part.nbytes for _, part in job.checkpoint.torn if part.file in left)
    check_space(partial.directory, needed + (0 if partial.shards else converted_bytes(job)))
    with PlacedWeights(partial.model, job) as weights:
        if left:
            # Each byte counts twice: when it comes, and when it is written.
            total_bytes = 2 * sum(sizes[name] for name in left)
            into = f", {len(partial.shards)} files are in" if partial.shards else ""
            progress.start(f"fetching and converting{into}", total_bytes)
        for name in left:
            record = source.fetch(name, progress)
            with arriving.shards[name].is_here():
                counted = _Counted(progress, sizes[name])
                weights.take(name, counted)
                counted.rest()
                partial.copies |= _copy_hashes(job, name)
                for part in (part for _, part in job.checkpoint.torn if part.file == name):
                    arriving.shards[name].keep(part.name)
            partial.shards[name] = record
            partial.save()
            source.drop(name)
            for part in (part for whole, part in job.checkpoint.torn if whole.file == name):
                arriving.shards[part.file].forget(part.name)
        weights.write_resident_header()
    for copy, original in job.assignment.copies:
        if partial.copies[copy.name] != partial.copies[original.name]:
            raise not_tied(job.source, copy, original)


class _Counted(SilentProgress):
    """Passes on how many bytes of a file were written, and never more than it has."""

    def __init__(self, progress: Progress, nbytes: int) -> None:
        self._progress = progress
        self._left = nbytes

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are written."""
        counted = min(nbytes, self._left)
        self._left -= counted
        self._progress.advance(counted)

    def rest(self) -> None:
        """All is: also what nothing in the model needs."""
        self.advance(self._left)


def _is_begun(model: Path, job: Job) -> bool:
    """Whether both files of weights are there, in their final size."""
    sizes = {
        RESIDENT_FILE: resident_bytes(job.spec),
        BUNDLES_FILE: BundleHeader.for_spec(job.spec, bytes(16)).file_bytes,
    }
    return all(
        (model / name).is_file() and (model / name).stat().st_size == nbytes
        for name, nbytes in sizes.items()
    )


def _copy_hashes(job: Job, shard: str) -> dict[str, str]:
    """Hashes of the tensors of a shard that must equal another, or that another must equal."""
    found = {}
    for tensor in {tensor for pair in job.assignment.copies for tensor in pair}:
        if tensor.file == shard:
            digest = hashlib.sha256()
            for block in blocks_of(job.checkpoint, tensor):
                digest.update(block.data)
            found[tensor.name] = digest.hexdigest()
    return found


def _finish(partial: KeptPartial, job: Job, progress: Progress) -> None:
    """Everything beside the weights: checksums, tokenizer, manifest."""
    for path in partial.model.iterdir():
        if path.name not in (RESIDENT_FILE, BUNDLES_FILE):
            path.unlink()  # of a run that was interrupted here
    files = write_tokenizer(
        job.source, job.tokenizer_files, job.made_files, partial.model, progress
    )
    hashed = {name: _source_record(partial, job, name) for name in source_names(job)}
    header = BundleHeader.for_spec(job.spec, bytes(16))
    progress.start("checksums of the model", resident_bytes(job.spec) + header.file_bytes)
    files |= hash_tensors(partial.model, RESIDENT_FILE, progress)
    file_bytes = {name: record.bytes for name, record in hashed.items()}
    header = BundleHeader.for_spec(job.spec, bundles_id(job, file_bytes, files[RESIDENT_FILE]))
    with PlacedWeights(partial.model, job) as weights:
        weights.write_header(header)
    files |= check_bundles(partial.model, header, progress)
    progress.finish()
    write_manifest(partial.model, make_manifest(job, hashed, files))


def _source_record(partial: KeptPartial, job: Job, name: str) -> FileRecord:
    """Size and hash of a file of the source: a shard's as it came, else of what is here."""
    if name in partial.shards:
        return partial.shards[name]
    path = source_file(job.source, name)
    return FileRecord(path.stat().st_size, sha256_of(path, SilentProgress()))
