"""The pass over a file of rows: places, duplicates, sizes; little memory, whatever is in it."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flashllm.batch import input_rows
from flashllm.batch.input_rows import InputRows
from flashllm.batch.row import Row, RowDefaults, RowFailure
from flashllm.errors import FlashllmError, ReadFailed, UsageError
from tests.batch.batches import open_rows


def written(folder: Path, content: bytes) -> str:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return str(path)


def prompts(rows: InputRows) -> list[object]:
    found = [rows.row(number) for number in range(len(rows))]
    return [row.prompt if isinstance(row, Row) else row.code for row in found]


def test_rows_are_found_by_number_and_by_line(tmp_path: Path) -> None:
    content = b'\n{"prompt": "a"}\r\n  \n{"prompt": "b"}\nnope\n{"prompt": "c"}'
    with open_rows(written(tmp_path, content)) as rows:
        assert prompts(rows) == ["a", "b", "invalid_json", "c"]
        assert [rows.line(number) for number in range(4)] == [2, 4, 5, 6]
        assert [rows.number_of(line) for line in range(8)] == [None, None, 0, None, 1, 2, 3, None]
        assert (rows.form, rows.failures, rows.nbytes) == ("rows", 1, len(content))
        assert rows.first_failure == rows.row(2)


def test_the_first_object_says_the_form_of_all(tmp_path: Path) -> None:
    lines = ["nope", '{"custom_id": "a"}', '{"prompt": "b"}']
    with open_rows(written(tmp_path, "\n".join(lines).encode())) as rows:
        assert rows.form == "openai"
        found = [rows.row(number) for number in range(3)]
    codes = [row.code if isinstance(row, RowFailure) else "" for row in found]
    assert codes == ["invalid_json", "invalid_value", "mixed_formats"]
    assert found[0].id is None


def test_the_second_row_with_an_id_is_an_error(tmp_path: Path) -> None:
    ids = [5, "a", "b", "a", None, "5", "a", "x"]
    lines = [json.dumps({"id": id_, "prompt": "p"} if id_ else {"prompt": "p"}) for id_ in ids]
    lines[6] = json.dumps({"id": "a"})  # what else is wrong with it is told instead
    with open_rows(written(tmp_path, "\n".join(lines).encode())) as rows:
        assert prompts(rows) == [
            "p", "p", "p", "duplicate_id", "duplicate_id", "duplicate_id", "missing_key", "p"
        ]  # fmt: skip
        assert rows.failures == 4
        assert rows.first_failure == rows.row(3)


def test_a_line_that_is_too_long_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_rows, "ROW_BYTES_MAX", 64)
    monkeypatch.setattr(input_rows, "COPY_BYTES", 50)
    whole = b'{"prompt": "' + b"a" * (64 - 15) + b'"}\n'
    assert len(whole) == 64
    content = whole + b"x" * 200 + b"\n" + b'{"prompt": "b"}\n' + b"y" * 64 + b"\n" + b"z" * 99
    with open_rows(written(tmp_path, content)) as rows:
        assert prompts(rows) == ["a" * 49, "row_too_long", "b", "row_too_long", "row_too_long"]
        assert rows.nbytes == len(content)


def test_files_of_the_same_bytes_have_one_hash(tmp_path: Path) -> None:
    hashes = []
    for content in (b'{"prompt": "a"}\n', b'{"prompt": "a"}\n', b'{"prompt": "a"} \n'):
        with open_rows(written(tmp_path, content)) as rows:
            hashes.append(rows.content_hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_pipe_is_copied_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    lines = b'{"prompt": "a"}\n' * 3
    writer = threading.Thread(target=lambda: pipe.write_bytes(lines))
    writer.start()
    with open_rows(str(pipe), tmp_path) as rows:
        assert prompts(rows) == ["a", "a", "a"]
    writer.join()
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "has no rows"), (b"\n \n", "has no rows"), (None, "No such file")]
)
def test_what_is_no_file_of_rows(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = str(tmp_path / "none") if content is None else written(tmp_path, content)
    with pytest.raises(UsageError, match=words):
        open_rows(path)
    with pytest.raises(UsageError, match="Is a directory"):
        open_rows(str(tmp_path))


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"prompt": "a"}\n')
    with open_rows(path) as rows:
        Path(path).write_bytes(b'{"prompt": "b"}\n{"prompt": "c"}\n')
        with pytest.raises(ReadFailed, match="was changed while"):
            rows.row(0)


class FailingFile(io.FileIO):
    """Rows on a device that fails from the read of that number on."""

    def __init__(self, path: str, whole_reads: int) -> None:
        super().__init__(path)
        self.reads = iter(range(whole_reads))

    def readline(self, size: int | None = -1) -> bytes:
        if next(self.reads, None) is None:
            raise OSError(errno.EIO, "Input/output error")
        return super().readline(size)


def test_a_file_that_cannot_be_read_through_or_later(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"prompt": "a"}\n' * 3)

    def opened(whole_reads: int) -> InputRows:
        file: Any = FailingFile(path, whole_reads)
        return input_rows.read_rows(file, path, RowDefaults())

    for reads in range(4):
        with pytest.raises(ReadFailed, match=r"rows\.jsonl: cannot be read: Input/output error"):
            opened(reads)
    with opened(5) as rows:
        assert isinstance(rows.row(2), Row)
        with pytest.raises(ReadFailed, match=r"rows\.jsonl: cannot be read: Input/output error"):
            rows.row(0)


def test_what_standard_input_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed; name a file"):
        input_rows.open_source("-")


def test_a_copy_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    for scratch in (tmp_path / "none", tmp_path):
        read, write = os.pipe()
        os.close(write)
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(FlashllmError, match="a copy of rows"):
            input_rows.read_rows(os.fdopen(read, "rb"), "rows", RowDefaults(), scratch)
        assert len(os.listdir("/proc/self/fd")) == descriptors - 1


MEASURE = """
import sys
from flashllm.batch.input_rows import open_source, read_rows
from flashllm.batch.row import RowDefaults

def open_rows(path):
    return read_rows(open_source(path), path, RowDefaults())

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

open_rows(sys.argv[1]).close()
before = peak()
with open_rows(sys.argv[2]) as rows:
    rows.row(len(rows) - 1)
    print(len(rows), rows.failures, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_many_rows_take_little_memory(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    few.write_bytes(b'{"prompt": "a"}\n')
    with many.open("wb") as file:
        for number in range(100_000):
            file.write(b'{"id": "row %d", "prompt": "%s"}\n' % (number // 2, b"a" * 300))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, few, many], capture_output=True, text=True, check=True
    )
    rows, failures, kib = map(int, done.stdout.split())
    assert (rows, failures) == (100_000, 50_000)
    assert kib < 16 << 10  # the file has 33 MB
