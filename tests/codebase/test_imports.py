"""Who imports whom, seen from the outside: each in a process of its own."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flashllm

PACKAGE = Path(flashllm.__file__).parent
HEAVY = ("torch", "textual", "transformers", "tokenizers", "sentencepiece", "huggingface_hub")


def loaded_after(code: str, *unwanted: str) -> set[str]:
    """Which of the unwanted packages are loaded when the code has run."""
    show = f"import sys; print('loaded:', *({set(unwanted)!r} & set(sys.modules)))"
    measured = {"COVERAGE_PROCESS_CONFIG"}  # what counts lines loads modules of its own
    environment = {name: value for name, value in os.environ.items() if name not in measured}
    finished = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment | {"FLASHLLM_CORE": "native"},
    )
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.splitlines()[-1].split()[1:])


def modules_of(folder: str) -> list[str]:
    """Names of the modules in a folder of the package, its own included."""
    prefix = f"flashllm.{folder}"
    found = pkgutil.walk_packages([str(PACKAGE / folder)], prefix + ".")
    return [prefix, *(module.name for module in found)]


def modules_at_the_top() -> list[str]:
    return [
        f"flashllm.{path.stem}"
        for path in sorted(PACKAGE.glob("*.py"))
        if path.stem not in ("__init__", "__main__")
    ]


def test_the_package_alone_is_light() -> None:
    assert loaded_after("import flashllm", *HEAVY, "numpy.testing") == set()


@pytest.mark.parametrize("module", modules_of("flash"))
def test_bytes_know_nothing_of_torch(module: str) -> None:
    assert loaded_after(f"import {module}", *HEAVY) == set()


def test_answers_are_computed_without_torch(sparse_model: Path) -> None:
    """It takes two seconds and 150 MiB, and only a device, a pipeline and training need it."""
    code = f"""
import flashllm
with flashllm.open_model({str(sparse_model)!r}) as model:
    assert len(list(model.generate([5, 6, 7], max_tokens=3))) == 3
"""
    assert loaded_after(code, "torch", "textual", "transformers") == set()


OPENS = {f"flashllm.library.{name}" for name in ("open", "worker_entry")}


@pytest.mark.parametrize("module", sorted({*modules_of("library")} - OPENS))
def test_looking_for_models_needs_no_engine(module: str) -> None:
    code = f"import {module}; from flashllm.convert import describe"
    assert loaded_after(code, *HEAVY) == set()


@pytest.mark.parametrize(
    "module", ["flashllm.errors", "flashllm.spec", "flashllm.untrusted.terminal"]
)
def test_the_lowest_need_nothing(module: str) -> None:
    assert loaded_after(f"import {module}", *HEAVY, "psutil", "safetensors") == set()


def test_conversations_that_are_kept_are_light() -> None:
    assert loaded_after("import flashllm.conversations.store", *HEAVY, "psutil", "rich") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_help_is_light(arguments: list[str]) -> None:
    code = f"""
import sys
from flashllm.cli.main import main
sys.argv = ["flashllm", *{arguments!r}]
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
"""
    assert loaded_after(code, *HEAVY) == set()


def test_only_the_user_interface_knows_textual() -> None:
    below = [
        *modules_at_the_top(),
        *modules_of("flash"),
        *modules_of("model"),
        *modules_of("cli"),
        "flashllm.convert",
        "flashllm.predictors",
        "flashllm.predictors.train",
    ]
    code = "import importlib\nfor name in " + repr(below) + ": importlib.import_module(name)"
    assert loaded_after(code, "textual", "transformers") == set()


def test_the_user_interface_does_without_what_computes() -> None:
    others = {"torch", "transformers", "tokenizers", "sentencepiece", "safetensors", "jinja2"}
    names = modules_of("ui")
    code = "import importlib\nfor name in " + repr(names) + ": importlib.import_module(name)"
    assert loaded_after(code, *others) == set()


def test_the_first_frame_waits_for_no_arrays() -> None:
    code = "import flashllm.ui.app, flashllm.cli.commands.chat, flashllm.telemetry.token_report"
    assert loaded_after(code, "numpy", "torch", "flashllm.core", "flashllm.engine.local") == set()


@pytest.mark.parametrize(
    "module",
    ["engine.process.client", "planning.plan", "planning.advisor", "library.scan",
     "library.open_check", "library.conversion_summary", "library.library", "ui.screens.models"],
)  # fmt: skip
def test_who_only_looks_at_models_needs_no_arrays(module: str) -> None:
    """They are ten megabytes and more of the application, of which slots are made otherwise."""
    assert loaded_after(f"import flashllm.{module}", "numpy") == set()


def test_the_first_frame_waits_for_nothing_that_comes_later() -> None:
    later = {
        "sqlite3",
        "flashllm.conversations.database",
        "flashllm.library.conversion_job",
        "flashllm.engine.process.launcher",
    }
    later |= {
        f"flashllm.ui.screens.{page}" for page in ("confirm", "help", "models", "token_details")
    }
    later |= {"flashllm.ui.transcript.markdown", "markdown_it", "pygments"}
    assert loaded_after("import flashllm.ui.app, flashllm.cli.commands.chat", *later) == set()


FIRST = """
import importlib, os, traceback
import torch  # once for all: what is looked at is the order of our own modules
failed = []
for name in {names!r}:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        failed.append(name)
assert not failed, failed
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_every_module_can_be_imported_first() -> None:
    names = [*modules_at_the_top(), *modules_of("model"), *modules_of("cli")]
    names += modules_of("library")
    names += ["flashllm.convert", "flashllm.predictors", "flashllm.predictors.train"]
    assert loaded_after(FIRST.format(names=names), "flashllm.engine.local") == set()


def test_the_core_is_asked_for_and_not_its_twin() -> None:
    """What both have comes from `flashllm.core`: the twin is a hundred times slower."""
    folders = (PACKAGE, PACKAGE.parent / "tools", PACKAGE.parent / "predictors")
    pattern = r"numpy_twin\.(?:attention|kernels|memory|reader|rows|selection)\b"
    naming = [
        path.relative_to(PACKAGE.parent).as_posix()
        for folder in folders
        for path in folder.rglob("*.py")
        if "core" not in path.relative_to(folder).parts
        and re.search(pattern, path.read_text("utf-8"))
    ]
    assert naming == []


def test_one_module_asks_the_hub_and_loads_its_library_then() -> None:
    folders = (PACKAGE, PACKAGE.parent / "tools", PACKAGE.parent / "predictors")
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    naming = [
        path.relative_to(PACKAGE.parent).as_posix()
        for path in paths
        if re.search(r"^\s*(?:from|import) huggingface_hub", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert sorted(naming) == ["flashllm/library/hub.py", "flashllm/library/hub_errors.py"]


def test_no_module_is_loaded_twice_under_two_names() -> None:
    names = ("tools", "predictors")
    code = "import flashllm.convert, flashllm.predictors.train, flashllm.engine.local"
    assert loaded_after(code, *names) == set()
