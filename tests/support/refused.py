"""Conversions that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import convert

from flashllm.errors import FlashllmError


def refuse(source: Path, error: type[FlashllmError], match: str, **options: Any) -> None:
    """The conversion raises exactly `error`, and nothing lies beside the source afterwards."""
    before = sorted(source.parent.iterdir())
    with pytest.raises(error, match=match) as caught:
        convert(source, source.parent / "out", **options)
    assert type(caught.value) is error
    assert sorted(source.parent.iterdir()) == before
