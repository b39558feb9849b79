"""That `make sanitize-binding` sees what it is for; skipped where it does not run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flashllm import _core

BEYOND = """
import numpy as np
from flashllm import _core
bytes = np.lib.stride_tricks.as_strided(_core.Buffer(4096).array(), (4097,))
print(_core.crc32c(bytes))
"""


@pytest.mark.skipif("FLASHLLM_SANITIZED_CORE" not in os.environ, reason="the core is the usual one")
def test_a_read_behind_a_buffer_ends_the_process() -> None:
    assert _core.__file__.startswith(os.environ["FLASHLLM_SANITIZED_CORE"])
    found = subprocess.run([sys.executable, "-c", BEYOND], capture_output=True, text=True)
    assert found.returncode != 0
    assert "AddressSanitizer: use-after-poison" in found.stderr
