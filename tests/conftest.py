"""One sparse model for the tests of the runtime, with predictors that are never wrong."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashllm.system.log import LOGGER, stop_log

# Tests of the chat and of bytes load this file too, and do without torch: what needs it is
# imported by the fixtures that are asked for.
if TYPE_CHECKING:
    from flashllm.engine.local import Model


def pytest_sessionfinish() -> None:
    """Coverage is saved while the process lasts: a worker that has told its end is soon killed."""
    coverage = sys.modules.get("coverage")
    measuring = coverage.Coverage.current() if coverage is not None else None
    if measuring is not None:
        measuring.stop()
        measuring.save()


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """A shell's background job ignores Ctrl+C, and so would every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing that is kept for the user, such as what was measured of the disk, reaches a test."""
    directory = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHLLM_HOME", str(directory))
        patch.setenv("FLASHLLM_NO_QUICK_PROFILE", "1")  # nor does anything go on behind a test
        yield directory


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """What a test's command has opened as its log ends with the test."""
    yield
    stop_log()
    LOGGER.propagate = True


@pytest.fixture(scope="session")
def sparse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted model most of whose neurons are silent, as in those the method is made for."""
    from flashllm.convert import convert

    from tests.support.tiny import save_exact_predictors, save_opt, sparse_opt

    root = tmp_path_factory.mktemp("sparse")
    model = sparse_opt()
    predictors = save_exact_predictors(model, root / "predictors.safetensors")
    convert(save_opt(model, root / "source"), root / "converted", predictors=predictors)
    return root / "converted"


@pytest.fixture
def model(sparse_model: Path) -> Iterator[Model]:
    """It, open, with the default settings."""
    from flashllm.engine.local import open_model

    with open_model(sparse_model) as opened:
        yield opened


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that comes with the project, converted."""
    from flashllm.convert import demo_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHLLM_HOME", str(tmp_path_factory.mktemp("home")))
        return demo_model()
