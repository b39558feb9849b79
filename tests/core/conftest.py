"""Both cores, and files to read with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flashllm._core as native_core
from flashllm.core.numpy_twin import kernels
from flashllm.dtypes import DTYPES

FILE_BYTES = 300_001  # a multiple of nothing: the last block of the file is a short one


@pytest.fixture(scope="session", params=["native", "numpy"])
def core(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two cores: what holds for one holds for the other."""
    return {"native": native_core, "numpy": kernels}[request.param]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The twin has no ring: what it has not needs no test and no word in the summary."""
    items[:] = [
        item
        for item in items
        if not (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and item.callspec.params.get("core") == "numpy"
            and item.callspec.params.get("backend") == "uring"
        )
    ]


@pytest.fixture(scope="session")
def contents() -> np.ndarray:
    """What the file to read holds."""
    return np.random.default_rng(1).integers(0, 256, FILE_BYTES, dtype=np.uint8)


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory, contents: np.ndarray) -> Path:
    """A file of random bytes."""
    path = tmp_path_factory.mktemp("core") / "data.bin"
    contents.tofile(path)
    return path


@pytest.fixture(scope="session", params=["threads", "uring"])
def backend(request: pytest.FixtureRequest, core: ModuleType, data_file: Path) -> str:
    """Each way to have many reads in flight, where this system has it."""
    reader = core.Reader(str(data_file), backend=request.param)
    found, problem = reader.backend, reader.backend_problem
    reader.close()
    if found != request.param:
        pytest.skip(f"{core.NAME}: {problem}")
    return str(found)


@pytest.fixture(params=["optional", "disabled"])
def open_reader(
    request: pytest.FixtureRequest, core: ModuleType, data_file: Path, backend: str
) -> Callable[..., Any]:
    """Opens the file: directly where the file system can, or buffered."""

    def open_one(**options: Any) -> Any:
        return core.Reader(str(data_file), direct=request.param, backend=backend, **options)

    return open_one


@pytest.fixture(scope="session", params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    """Each encoding of rows."""
    return str(request.param)


@pytest.fixture(params=[*native_core.available_isas(), "numpy"])
def make_kernels(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Kernels of each instruction set that this processor has, and those of the numpy twin."""
    isa = request.param
    core = kernels if isa == "numpy" else native_core
    return lambda threads=1: core.Kernels(threads, isa)
