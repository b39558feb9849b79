"""The ceiling of a model for which none was asked."""

from __future__ import annotations

import pytest

from flashllm.planning import model_facts
from flashllm.planning.model_facts import usual_ceiling
from flashllm.units import MIB


@pytest.mark.parametrize(
    ("limit_mib", "ceiling_mib"),
    [
        pytest.param(None, 200 + 50 + 300, id="no container"),
        pytest.param(4000, 200 + 50 + 300, id="a container that leaves more"),
        pytest.param(500, 475, id="libraries that count for another container"),
    ],
)
def test_the_usual_ceiling_is_below_the_limit_of_the_container(
    monkeypatch: pytest.MonkeyPatch, limit_mib: int | None, ceiling_mib: int
) -> None:
    limit = None if limit_mib is None else limit_mib * MIB
    monkeypatch.setattr(model_facts, "available_bytes", lambda: 400 * MIB)
    monkeypatch.setattr(model_facts, "container_limit_bytes", lambda: limit)
    assert usual_ceiling(200 * MIB, 50 * MIB) == ceiling_mib * MIB
