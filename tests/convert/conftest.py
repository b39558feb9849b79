"""Most tests need no process of its own for a pickle: starting one loads torch, for seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest


@pytest.fixture(autouse=True)
def pickles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks into pickles in this process, but for the tests of that process itself."""
    from flashllm.convert.source import pickle_process, pickled

    def answer(descriptors: Sequence[int]) -> tuple[int, bytes]:
        answers = [
            pickle_process.answer_about(f"/dev/fd/{descriptor}", pickled.MEMORY_BYTES_MAX)
            for descriptor in descriptors
        ]
        errors = [number for number, one in enumerate(answers) if "error" in one]
        told = answers[: errors[0] + 1] if errors else answers
        return 0, json.dumps({"files": told}).encode()

    if request.module.__name__.rpartition(".")[2] != "test_convert_pickles":
        monkeypatch.setattr(pickled, "_run", answer)
