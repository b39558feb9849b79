"""Names options in errors as Python code does: `memory="8GiB"` for `--memory 8GiB`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from flashllm.errors import FlashllmError
from flashllm.options import KV_DTYPES, OVERLAPS, POLICIES, PROMPT_NEURONS, SELECTORS, VERIFIES

_KEYWORDS = {
    "memory": "memory",
    "ctx-size": "context",
    "kv-dtype": "kv_dtype",
    "kv-memory": "kv_memory",
    "kv-dir": "kv_dir",
    "kv-victims": "kv_victims",
    "select": "select",
    "policy": "policy",
    "window": "window",
    "io-threads": "io_threads",
    "overlap": "overlap",
    "verify": "verify",
    "prompt-neurons": "prompt_neurons",
    "arithmetic": "arithmetic",
    "profile": "profile",
    "keep-kv": "keep_kv",
    "kv-policy": "kv_policy",
    "kv-budget": "kv_budget",
    "kv-alpha": "kv_alpha",
    "kv-recall": "kv_recall",
    "spec-start-layer": "spec_start_layer",
    "device": "device",
    "device-memory": "device_memory",
}
"""Flag -> field of `ModelOptions`."""
_CHOICES = "|".join((*SELECTORS, *POLICIES, *KV_DTYPES, *OVERLAPS, *VERIFIES, *PROMPT_NEURONS))
_GIVEN = re.compile(
    rf"--({'|'.join(_KEYWORDS)})\b(?: (?:(\d+)|(\d+(?:\.\d+)?[KMGT]i?B|{_CHOICES}))(?![\w.]))?"
)
_BARE = re.compile(rf"\b({'|'.join(flag for flag in _KEYWORDS if '-' in flag)})\b")
_NEIGHBOURS = re.compile(rf"(=\d+|=\"\S+\") (?=(?:{'|'.join(_KEYWORDS.values())})=)")


@contextlib.contextmanager
def keywords_in_errors() -> Iterator[None]:
    """Context manager whose errors of ours name options by the keywords of `open_model`."""
    try:
        yield
    except FlashllmError as error:
        error.args = (with_keywords(str(error)), *error.args[1:])
        raise


def with_keywords(text: str) -> str:
    """The same text, `--ctx-size 512 --kv-dtype int8` as `context=512, kv_dtype="int8"`."""
    changed = _NEIGHBOURS.sub(r"\1, ", _GIVEN.sub(_keyword, text))
    return _BARE.sub(lambda match: _KEYWORDS[match[1]], changed)


def _keyword(match: re.Match[str]) -> str:
    name = _KEYWORDS[match[1]]
    if match[2]:
        return f"{name}={match[2]}"
    return f'{name}="{match[3]}"' if match[3] else name
