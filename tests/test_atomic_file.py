"""A file is written whole, or nothing of it is seen."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from unittest import mock

import pytest

from flashllm.system.atomic_file import replacing, write_whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(path: Path) -> list[str]:
    return [each.name for each in path.parent.iterdir()]


def test_what_is_new_is_whole(path: Path) -> None:
    write_whole(path, b"all of it")
    assert path.read_bytes() == b"all of it"
    assert names(path) == ["kept"]


def test_what_was_there_is_replaced(path: Path) -> None:
    path.write_bytes(b"a longer text from before")
    with path.open("rb") as before:
        write_whole(path, b"new", durable=True)
        assert before.read() == b"a longer text from before"
    assert path.read_bytes() == b"new"
    assert names(path) == ["kept"]


def write_half(path: Path, error: BaseException) -> None:
    with replacing(path) as part:
        part.write_bytes(b"hal")
        assert len(names(path)) == 2
        raise error


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_alone(path: Path, error: BaseException) -> None:
    path.write_bytes(b"old")
    with pytest.raises(type(error)):
        write_half(path, error)
    assert path.read_bytes() == b"old"
    assert names(path) == ["kept"]


def test_a_failure_at_the_end_leaves_nothing(path: Path) -> None:
    with mock.patch.object(os, "fsync", side_effect=OSError), pytest.raises(OSError):
        write_whole(path, b"never kept", durable=True)
    assert names(path) == []


def test_a_folder_is_not_replaced(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError):
        write_whole(path, b"content")
    assert names(path) == ["kept"]


def test_only_durable_content_is_waited_for(path: Path) -> None:
    with mock.patch.object(os, "fsync") as waited:
        write_whole(path, b"soon")
        waited.assert_not_called()
        write_whole(path, b"now", durable=True)
        waited.assert_called_once()


def test_modes(path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(path, b"for everybody")
        assert mode_of(path) == 0o644
        write_whole(path, b"for the owner", 0o600)
        assert mode_of(path) == 0o600
    finally:
        os.umask(before)


def test_two_writers_do_not_meet(path: Path) -> None:
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert path.read_bytes() == b"first"


def test_a_name_may_be_as_long_as_the_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)
    write_whole(path, b"content")
    assert path.read_bytes() == b"content"
