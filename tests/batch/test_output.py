"""Files of answers: order, what is continued, what is refused, and a kill at every point."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashllm.batch import journal
from flashllm.batch import output as output_module
from flashllm.batch.answer_lines import AnswerForm, read_answer
from flashllm.batch.encoded_row import EncodedRow
from flashllm.batch.journal import read_header
from flashllm.batch.row import RowFailure
from flashllm.errors import CannotCreate, DestinationExists, NotEnoughSpace, ReadFailed
from tests.batch.batches import (
    KEY,
    answers,
    lines_of,
    names,
    open_output,
    open_rows,
    run,
    write_rows,
)

Order = Callable[[list[EncodedRow]], Iterable[Any]]


def backwards(rows: list[EncodedRow]) -> Iterable[EncodedRow]:
    return reversed(rows)


def as_given(rows: list[EncodedRow]) -> Iterable[EncodedRow]:
    return rows


class Killed(BaseException):
    """Nothing of the process runs after it."""


@pytest.fixture(autouse=True)
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks need not write at once, and all batches begin in the same second."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(time, "time", lambda: 1.8e9)


@pytest.fixture
def undisturbed(tmp_path: Path) -> bytes:
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    write_rows(folder)
    run(folder)
    return answers(folder)


def test_answers_are_in_the_order_of_the_rows(tmp_path: Path) -> None:
    write_rows(tmp_path)
    summary = run(tmp_path)
    assert (summary.rows, summary.answered, summary.errors, summary.resumed) == (5, 3, 2, 0)
    found = lines_of(tmp_path)
    assert [line["line"] for line in found] == [1, 2, 3, 4, 5]
    assert [line["id"] for line in found] == ["a", 2, "a", 4, "e\ud800\xe9"]
    assert [line.get("error", {}).get("code") for line in found] == [
        None, "invalid_json", "duplicate_id", None, None
    ]  # fmt: skip
    assert found[0] == {
        "id": "a", "line": 1, "text": "word word", "finish_reason": "stop",
        "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
    }  # fmt: skip
    assert (found[3]["text"], found[3]["finish_reason"]) == ("word ", "length")
    assert found[4]["message"] == {"role": "assistant", "content": "word word"}
    assert names(tmp_path) == ["answers.jsonl"]


def test_the_order_in_which_rows_are_finished_changes_nothing(
    tmp_path: Path, undisturbed: bytes
) -> None:
    write_rows(tmp_path)
    run(tmp_path, order=backwards)
    assert answers(tmp_path) == undisturbed


def test_or_answers_come_as_they_are_finished(tmp_path: Path, undisturbed: bytes) -> None:
    write_rows(tmp_path)
    run(tmp_path, order=backwards, as_finished=True)
    assert [line["line"] for line in lines_of(tmp_path)] == [2, 3, 5, 4, 1]
    assert sorted(answers(tmp_path).splitlines()) == sorted(undisturbed.splitlines())


@pytest.mark.parametrize("order", [as_given, backwards])
@pytest.mark.parametrize("as_finished", [False, True])
def test_a_kill_at_every_byte_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Order, as_finished: bool
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    write_rows(whole)
    run(whole, order=order, as_finished=as_finished)
    expected = sorted(lines_of(whole), key=lambda line: line["line"])
    pwrite, left = os.pwrite, [0]

    def writes_some(descriptor: int, raw: Any, offset: int) -> int:
        part = bytes(raw)[: left[0]]
        left[0] -= len(part)
        pwrite(descriptor, part, offset)
        if len(part) < len(raw):
            raise Killed
        return len(part)

    write_rows(tmp_path)
    killed = 0
    for nbytes in range(0, 10_000, 11):  # another place of each line each time
        (tmp_path / "answers.jsonl").unlink(missing_ok=True)
        left[0] = nbytes
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", writes_some)
            try:
                run(tmp_path, order=order, as_finished=as_finished)
                break
            except Killed:
                killed += 1
        run(tmp_path, order=order, as_finished=as_finished)
        found = lines_of(tmp_path)
        assert sorted(found, key=lambda line: line["line"]) == expected, nbytes
        assert as_finished or answers(tmp_path) == answers(whole)
        assert names(tmp_path) == ["answers.jsonl", "whole"]
    assert killed > 50


def test_answers_that_wait_are_kept_through_two_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: bytes
) -> None:
    begin(tmp_path, 0)
    lines = undisturbed.splitlines(keepends=True)
    with (tmp_path / "answers.jsonl.partial").open("ab") as file:
        file.write(lines[4] + lines[3][:20])
    pwrite = os.pwrite

    def not_the_first(descriptor: int, raw: Any, offset: int) -> int:
        if bytes(raw) == lines[0]:
            raise Killed
        return pwrite(descriptor, raw, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", not_the_first)
        with pytest.raises(Killed):
            run(tmp_path, order=backwards)
    assert answers(tmp_path) == b""
    assert run(tmp_path).resumed == 4
    assert answers(tmp_path) == undisturbed


@pytest.mark.parametrize("again", [False, True])
def test_a_kill_before_every_call_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: bytes, again: bool
) -> None:
    """Also one in the run that continues after another kill."""
    folder = tmp_path / "folder"
    folder.mkdir()
    write_rows(folder)
    calls = [0]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any, **options: Any) -> Any:
            if calls[0] == 0:
                raise Killed
            calls[0] -= 1
            return call(*arguments, **options)

        return calling

    def killed_after(number: int) -> bool:
        calls[0] = number
        with monkeypatch.context() as patch:
            for name in ("pwrite", "ftruncate", "fsync"):
                patch.setattr(os, name, counted(getattr(os, name)))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            patch.setattr(output_module, "write_file", counted(output_module.write_file))
            try:
                run(folder, order=backwards)
            except Killed:
                return True
        return False

    number = 0
    while True:
        for name in names(folder):
            (folder / name).unlink()
        if again:
            assert killed_after(8)
        if not killed_after(number):
            break
        if names(folder) != ["answers.jsonl"] or answers(folder) != undisturbed:  # not complete
            run(folder, order=backwards)
        assert answers(folder) == undisturbed, number
        # What was to become the journal, if the kill came just then, is not looked at again.
        assert [name for name in names(folder) if name[0] != "."] == ["answers.jsonl"]
        number += 1
    assert number > 8


def begin(folder: Path, nbytes: int) -> None:
    """A batch that was killed when it had written so many bytes."""
    write_rows(folder)
    run(folder, order=as_given)
    whole = answers(folder)
    (folder / "answers.jsonl").unlink()
    with (
        open_rows(str(folder / "rows.jsonl")) as rows,
        open_output(folder, rows) as output,
    ):
        output.begin()
    (folder / "answers.jsonl").write_bytes(whole[:nbytes])


def test_a_run_of_something_else_is_refused(tmp_path: Path) -> None:
    begin(tmp_path, 200)
    before = answers(tmp_path)
    others = {
        "its rows were others": replace(KEY, rows_hash="x"),
        "its model was another": replace(KEY, model_hash="x"),
        "--temp: 0.0 before, 0.5 now": replace(KEY, settings={"--temp": 0.5}),
        "--raw: None before, True now": replace(KEY, settings={"--temp": 0.0, "--raw": True}),
    }
    for words, key in others.items():
        with pytest.raises(DestinationExists, match="an unfinished batch, and not this") as caught:
            run(tmp_path, key=key)
        assert words in str(caught.value)
        assert "--overwrite" in str(caught.value)
        assert (answers(tmp_path), len(names(tmp_path))) == (before, 2)
    run(tmp_path, key=others["its rows were others"], overwrite=True)
    assert len(lines_of(tmp_path)) == 5
    assert names(tmp_path) == ["answers.jsonl"]


def test_an_unfinished_batch_without_an_answer_is_nothing_to_lose(tmp_path: Path) -> None:
    begin(tmp_path, 0)
    assert run(tmp_path, key=replace(KEY, model_hash="x")).resumed == 0


def test_a_file_that_is_there_is_refused(tmp_path: Path, undisturbed: bytes) -> None:
    write_rows(tmp_path)
    (tmp_path / "answers.jsonl").write_text("precious")
    with pytest.raises(DestinationExists, match="is no unfinished batch; name another file"):
        run(tmp_path)
    assert answers(tmp_path) == b"precious"
    (tmp_path / "answers.jsonl").unlink()
    run(tmp_path)
    with pytest.raises(DestinationExists, match="--overwrite it"):
        run(tmp_path, key=replace(KEY, model_hash="x"))
    assert answers(tmp_path) == undisturbed
    assert run(tmp_path, overwrite=True).answered == 3
    assert answers(tmp_path) == undisturbed


def no_attributes(*_: object) -> None:
    raise OSError(errno.ENOTSUP, "not here")


@pytest.mark.parametrize("noted", [True, False])
def test_a_batch_that_is_done_is_done_again_at_once(
    tmp_path: Path, undisturbed: bytes, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is that was killed behind its last answer; where the file system can note that."""
    write_rows(tmp_path)
    if not noted:
        monkeypatch.setattr(os, "setxattr", no_attributes, raising=False)
    run(tmp_path)
    if noted and not journal.finished_header(tmp_path / "answers.jsonl"):
        pytest.skip("this file system has no attributes")
    if noted:
        summary = run(tmp_path)
        assert (summary.rows, summary.resumed, summary.is_complete) == (5, 5, True)
        assert answers(tmp_path) == undisturbed
        assert "answers.jsonl.partial" not in names(tmp_path)
        lines = undisturbed.splitlines(keepends=True)
        (tmp_path / "answers.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DestinationExists, match="is no unfinished batch"):
        run(tmp_path)
    assert "answers.jsonl.partial" not in names(tmp_path)


def test_a_batch_anew_is_not_done_before_it_is(tmp_path: Path) -> None:
    write_rows(tmp_path)
    run(tmp_path)
    with (
        open_rows(str(tmp_path / "rows.jsonl")) as rows,
        open_output(tmp_path, rows, overwrite=True) as output,
    ):
        output.begin()
    assert journal.finished_header(tmp_path / "answers.jsonl") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[1], lines[0]],
        lambda lines: [lines[0], lines[0]],
        lambda lines: [lines[0], b"mine\n", lines[1]],
        lambda lines: [lines[0].replace(b'"line": 1', b'"line": 2'), lines[1]],
    ],
)
def test_answers_that_were_changed_are_refused(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    begin(tmp_path, 10_000)
    lines = change(answers(tmp_path).splitlines(keepends=True)[:3])
    (tmp_path / "answers.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(DestinationExists, match=r"line \d is not where this batch writes it"):
        run(tmp_path)
    assert answers(tmp_path) == b"".join(lines)


@pytest.mark.parametrize("end", [b"\0" * 40, b"half a line", b""])
def test_what_a_loss_of_power_left_at_the_end_is_cut_off(
    tmp_path: Path, undisturbed: bytes, end: bytes
) -> None:
    begin(tmp_path, 250)
    lines = undisturbed.splitlines(keepends=True)
    with (tmp_path / "answers.jsonl").open("ab") as file:
        file.write(b"\0" * 300 + b"\n" + lines[3] + end)
    assert run(tmp_path).resumed == 1
    assert answers(tmp_path) == undisturbed


@pytest.mark.parametrize(
    "content", [b"", b"mine", b"[]\n", b'{"flashllm_batch": 2}\n', b'{"flashllm_batch": 1}\n']
)
def test_a_file_of_the_journals_name_that_is_none(tmp_path: Path, content: bytes) -> None:
    write_rows(tmp_path)
    (tmp_path / "answers.jsonl.partial").write_bytes(content)
    with pytest.raises(DestinationExists, match=r"answers\.jsonl\.partial: is not what"):
        run(tmp_path)
    assert (tmp_path / "answers.jsonl.partial").read_bytes() == content
    assert names(tmp_path) == ["answers.jsonl.partial"]


def test_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match="cannot be read: Is a directory"):
        read_header(tmp_path)


def test_two_batches_into_one_file(tmp_path: Path) -> None:
    write_rows(tmp_path)
    with (
        open_rows(str(tmp_path / "rows.jsonl")) as rows,
        open_output(tmp_path, rows) as output,
    ):
        with pytest.raises(CannotCreate, match="another process writes answers there"):
            run(tmp_path)
        with pytest.raises(CannotCreate, match="another process writes answers there"):
            run(tmp_path, overwrite=True)
        output.begin()
    assert run(tmp_path).answered == 3


def test_a_file_that_was_removed_while_it_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path)
    flock, path, removed = fcntl.flock, tmp_path / "answers.jsonl", []

    def removing(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(True)
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    run(tmp_path)
    assert len(lines_of(tmp_path)) == 5


@pytest.mark.parametrize("room", [0, 40, 250, 400, 700, 900])
def test_a_full_disk_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: bytes, room: int
) -> None:
    write_rows(tmp_path)
    pwrite, left = os.pwrite, [room]

    def fills_up(descriptor: int, raw: Any, offset: int) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        part = bytes(raw)[: left[0]]
        left[0] -= len(part)
        return pwrite(descriptor, part, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fills_up)
        with pytest.raises(NotEnoughSpace, match="free some and run the same command again"):
            run(tmp_path)
    kept = answers(tmp_path)
    assert undisturbed.startswith(kept)
    assert kept.endswith(b"\n") or not kept
    assert bool(kept) == (room > 400)  # answers that wait for an earlier one lie elsewhere
    run(tmp_path)
    assert answers(tmp_path) == undisturbed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "Is a directory"),
        ("none/answers", "none: no such directory; create it first"),
        ("rows.jsonl", "holds the rows"),
        ("pipe", "is no regular file"),
    ],
)
def test_what_cannot_hold_answers(tmp_path: Path, name: str, words: str) -> None:
    path = write_rows(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    before = Path(path).read_bytes()
    with open_rows(path) as rows, pytest.raises(CannotCreate, match=words):
        output_module.FileOutput(tmp_path / name, rows, KEY)
    assert Path(path).read_bytes() == before


def test_a_batch_that_cannot_begin_leaves_no_file(tmp_path: Path) -> None:
    with open_rows(write_rows(tmp_path)) as rows, open_output(tmp_path, rows):
        assert names(tmp_path) == ["answers.jsonl"]
    assert names(tmp_path) == []


def test_a_line_is_read_only_where_it_is_whole() -> None:
    for form in ("rows", "openai"):
        failure = RowFailure(7, "a", "code", "words")
        line = AnswerForm(form, "m", 5).line(failure)  # type: ignore[arg-type]
        kept = read_answer(line, form)  # type: ignore[arg-type]
        assert kept is not None
        assert (kept.line, kept.is_failure) == (7, True)
        for nbytes in range(len(line)):
            assert read_answer(line[:nbytes], form) is None  # type: ignore[arg-type]
    for other in ({"line": 7}, {"line": "7", "error": {}}, {"error": {}}, [7], 7):
        assert read_answer(json.dumps(other).encode() + b"\n", "rows") is None
    for other in ({"id": "batch_req_7"}, {"id": 7, "custom_id": "a"}):
        assert read_answer(json.dumps(other).encode() + b"\n", "openai") is None
