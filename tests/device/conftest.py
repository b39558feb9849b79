"""Which devices torch has here: the CPU in the stead of one, and a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA here")


@pytest.fixture(params=["cpu-torch", pytest.param("cuda", marks=_CUDA)])
def device(request: pytest.FixtureRequest) -> str:
    """The name of a device, as `--device` takes it."""
    name: str = request.param
    return name
