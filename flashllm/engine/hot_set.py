"""The experts that an earlier run of a model held, kept for the next one in the cache directory.

They are read while nobody waits, most valuable first, so that the first answers find them. No
answer depends on it: where they cannot be kept or read, the slots begin empty.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flashllm.arrays import Ids
from flashllm.errors import LayoutError
from flashllm.spec import ModelSpec
from flashllm.system.atomic_file import write_whole
from flashllm.system.paths import cache_dir
from flashllm.untrusted.strict_json import parse_object

FILE_BYTES_MAX = 4 << 20
_KEY = "experts"


def keep_hot_set(file_id: bytes, hot: Sequence[Ids]) -> None:
    """Keep the ids of each layer, most valuable first, for the model of that `file_id`."""
    raw = json.dumps({_KEY: [ids.tolist() for ids in hot]}).encode()
    with contextlib.suppress(OSError):
        path = _file(file_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, raw)


def kept_hot_set(file_id: bytes, spec: ModelSpec) -> list[Ids]:
    """The ids of each layer that were kept; empty where there are none, or they fit no model."""
    path = _file(file_id)
    try:
        with open(path, "rb") as file:
            found = parse_object(file.read(FILE_BYTES_MAX), path, LayoutError).get(_KEY)
    except (OSError, LayoutError):
        return []
    if not isinstance(found, list) or len(found) != spec.bundled_layers:
        return []
    known = set(range(spec.bundles_per_layer))
    for ids in found:
        whole = isinstance(ids, list) and all(type(number) is int for number in ids)
        if not whole or len(set(ids)) != len(ids) or not known.issuperset(ids):
            return []
    return [np.array(ids, dtype=np.int32) for ids in found]


def _file(file_id: bytes) -> Path:
    return cache_dir() / "hot-experts" / f"{file_id.hex()}.json"
