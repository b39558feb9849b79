"""Which file is read for a quick profile: the largest of those that are there anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm.library import quick_target as module
from flashllm.library.quick_target import quick_target


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(module, "_libraries", list)
    return tmp_path


def write(path: Path, nbytes: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\1" * nbytes)
    return path


def test_a_file_is_taken_as_it_is(home: Path) -> None:
    file = write(home / "some.bin", 10)
    assert quick_target(file) == file
    assert quick_target(home / "absent") == home / "absent"


def test_the_largest_model_on_the_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write(home / "m.flash" / "ffn.bundles", 5000)
    assert quick_target(own.parent) == own
    other = write(home / "home" / "models" / "big.flash" / "ffn.bundles", 9000)
    assert quick_target(own.parent) == other
    blob = write(home / "hub" / "models--a--b" / "blobs" / "abc", 20_000)
    assert quick_target(own.parent) == blob
    monkeypatch.setattr(module, "FILE_BYTES_ENOUGH", 5000)
    assert quick_target(own.parent) == own  # large enough by itself


def test_a_file_with_holes_is_not_read(home: Path) -> None:
    own = write(home / "m.flash" / "ffn.bundles", 5000)
    hole = home / "home" / "models" / "big.flash" / "ffn.bundles"
    hole.parent.mkdir(parents=True)
    with hole.open("wb") as file:
        file.truncate(1 << 30)
    assert quick_target(own.parent) == own


def test_where_models_are_small_a_library_serves(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write(home / "m.flash" / "ffn.bundles", 5000)
    library = write(home / "lib" / "large.so", 70_000)
    monkeypatch.setattr(module, "_libraries", lambda: [library, home / "lib"])
    assert quick_target(own.parent) == library
    monkeypatch.setattr(module, "FILE_BYTES_SMALL", 100)
    assert quick_target(own.parent) == own


def test_a_directory_without_anything(home: Path) -> None:
    assert quick_target(home) == home


def test_the_library_is_on_this_machine() -> None:
    # The real one: torch is always installed, and is not imported for this.
    import importlib

    again = importlib.reload(module)
    assert any(path.suffix == ".so" for path in again._libraries())
