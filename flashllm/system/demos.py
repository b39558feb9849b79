"""The models that come with the package: their names, and where their checkpoints are."""

from __future__ import annotations

import re
from pathlib import Path

import flashllm

DEMO_NAME = "demo"
"""The one that is opened where no model is named."""
EXPERTS_DEMO_NAME = "demo-moe"
"""Its sibling, a mixture of experts."""
DEMO_NAMES = (DEMO_NAME, EXPERTS_DEMO_NAME)
_CONVERTED = re.compile(f"({'|'.join(DEMO_NAMES)})-[0-9a-f]{{16}}")
"""Names of directories of converted demos, of any version."""


def demo_in(directory_name: str) -> str | None:
    """The demo whose converted directory, of any version, is called so; None for another model."""
    match = _CONVERTED.fullmatch(directory_name)
    return None if match is None else match[1]


def demo_checkpoint(name: str = DEMO_NAME) -> Path:
    """The folder of a demo in the package: its checkpoint, its texts and its card."""
    return Path(flashllm.__file__).parent / name.replace("-", "_")
