"""Makes Python take the core that FLASHLLM_SANITIZED_CORE is the folder of, in children too.

Python imports a module of this name by itself, from the PYTHONPATH that `make sanitize-binding`
sets.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

NAME = "flashllm._core"


class SanitizedCore:
    """Finds the core before the installed one is found."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The core's own file."""
        if name != NAME:
            return None
        return importlib.util.spec_from_file_location(name, self._path)


if folder := os.environ.get("FLASHLLM_SANITIZED_CORE"):
    modules = sorted(Path(folder).glob("_core*.so"))
    if not modules:
        sys.exit(f"{folder}: there is no core; run make sanitize-binding")
    sys.meta_path.insert(0, SanitizedCore(modules[0]))  # type: ignore[arg-type]
