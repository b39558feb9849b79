"""Tiny conversions, whole and shard by shard, of one checkpoint: for faults while writing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from flashllm.convert import convert, convert_shards
from flashllm.convert.output import destination as output

from tests.support.checkpoints import write_checkpoint
from tests.support.local_shards import LocalShards

Convert = Callable[[Path], None]


def conversions(directory: Path) -> dict[str, Convert]:
    """By name, what makes a model at a destination; the sources are in `directory`.

    From then on files of this process are written in small blocks, so that threads write, too.
    """
    output.BLOCK_BYTES = 4096
    source = write_checkpoint(directory / "source of whole")
    shards = directory / "source of shards"
    write_checkpoint(shards, shards=3)
    return {
        "whole": lambda destination: convert(source, destination),
        "shards": lambda destination: convert_shards(LocalShards(shards), destination),
    }


def clear(directory: Path) -> list[str]:
    """Removes all that is in a directory; the names."""
    names = sorted(path.name for path in directory.iterdir())
    for path in directory.iterdir():
        shutil.rmtree(path)
    return names
