"""The Nth read of an answer fails, for N = 1, 2, 3 ...: right tokens or an error of ours.

By a faulty back-end in this process, and by the shim under the native reader in another one.
"""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path

import pytest

from flashllm.engine.local import open_model
from flashllm.errors import FlashllmError, ReadFailed
from tests.support.fault_shim import run_under
from tests.support.faults import (
    EVERY,
    READ_FAULTS,
    REFUSE_DIRECT,
    TOKENS,
    answer,
    check_handles,
    check_slots,
    fail_reads,
    handles,
)
from tests.support.faulty_reader import FaultyReads
from tests.support.lent_slots import short_of_slots, shorten_blocks

STRIDE = 1 if EVERY else 13
"""Of `make test`: some reads of the prompt, some of tokens."""


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> FaultyReads:
    return FaultyReads(monkeypatch)


@pytest.fixture
def has_direct(sparse_model: Path) -> bool:
    """Whether the tests' file system has direct reads, which may be refused."""
    with open_model(sparse_model) as model:
        return bool(model.io_report()["direct"])


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for-ever"])
@pytest.mark.parametrize("kind", READ_FAULTS)
def test_every_read_may_fail(
    sparse_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: FaultyReads,
    has_direct: bool,
    kind: str,
    for_ever: bool,
) -> None:
    if kind == "EINVAL" and not has_direct:
        pytest.skip("no direct reads here")
    shorten_blocks(monkeypatch, sparse_model)
    opened = partial(short_of_slots, sparse_model)
    tally = fail_reads(opened, faults, kind, for_ever=for_ever, stride=STRIDE)
    assert tally.runs > (30 if EVERY else 3)
    fault = READ_FAULTS[kind]
    if (fault.for_ever if for_ever else fault.once) is None:
        assert not tally.errors
    else:
        assert sum(tally.errors.values()) >= tally.runs // 2


def test_a_refused_direct_read_is_given_up_once_and_told(
    sparse_model: Path, faults: FaultyReads, has_direct: bool
) -> None:
    if not has_direct:
        pytest.skip("no direct reads here")
    with open_model(sparse_model, window=1) as model:
        expected = answer(model)
        assert not [caution for caution in model.cautions() if "page cache" in caution]
        assert model.io_report()["downgrades"] == 0
        faults.arm(REFUSE_DIRECT, 5, for_ever=True)
        assert answer(model) == expected
        assert faults.disarm() == 1
        generation = model.generate([5, 17], max_tokens=1)
        list(generation)
        report = generation.report()["io"]
        assert (report["direct"], report["downgrades"]) == (False, 1)
        assert "a direct read was refused: Invalid argument" in report["fallback"]
        told = [caution for caution in model.cautions() if "page cache" in caution]
        assert len(told) == 1
        assert "refused" in told[0]


def test_direct_reads_that_must_be_are_not_given_up(
    sparse_model: Path, faults: FaultyReads, has_direct: bool
) -> None:
    from flashllm import core

    if not has_direct:
        pytest.skip("no direct reads here")
    import numpy as np

    reader = core.Reader(str(sparse_model / "ffn.bundles"), direct="required")
    buffer, place = core.Buffer(4096), np.zeros(1, np.int64)
    faults.arm(REFUSE_DIRECT, 1, for_ever=True)
    with pytest.raises(OSError, match="Invalid argument"):
        reader.read(place, 4096, buffer, place)
    assert reader.direct


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM, errno.EMFILE, -2])
def test_opening_survives_every_read(sparse_model: Path, faults: FaultyReads, code: int) -> None:
    """Of resident weights and predictors; the other files are read by Python, under the shim.

    Who keeps the errors, as here, keeps their frames, but no thread or file.
    """
    open_model(sparse_model).close()
    before, errors, fired = handles(), list[FlashllmError](), 1
    while fired:
        faults.arm(code, len(errors) + 1, for_ever=True)
        try:
            open_model(sparse_model).close()
        except FlashllmError as problem:
            errors.append(problem)
        fired = faults.disarm()
        check_handles(before)
    assert len(errors) >= 2  # each of the two files is a read, and more if it is large
    for error in errors:
        assert str(sparse_model) in str(error)
        assert code < 0 or type(error) is ReadFailed
    with open_model(sparse_model) as model:
        assert len(answer(model)) == TOKENS
        check_slots(model)


# The native reader, whose threads read at the same time: whichever of them meets the Nth call.
SHIM_KINDS = list(READ_FAULTS) if EVERY else ["EIO", "EINVAL", "ENOMEM", "short"]


def test_the_native_reader_survives_every_read_and_opening_every_call(sparse_model: Path) -> None:
    done = run_under("tests.faults.read_loops", sparse_model, *SHIM_KINDS)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    loops = {(line["loop"], line["kind"], line["for_ever"]): line for line in lines}
    assert {kind for loop, kind, _ in loops if loop == "reads"} == set(SHIM_KINDS)
    for (loop, kind, for_ever), line in loops.items():
        if loop == "reads" and kind in ("EIO", "ENOMEM"):
            assert line["runs"] >= (20 if EVERY else 3)
            assert set(line["errors"]) == ({"ReadFailed"} if for_ever else set())
    opened = [line for line in lines if line["loop"] == "opening"]
    assert {line["calls"] for line in opened} == {"open", "read"}
    assert all(line["runs"] >= (8 if EVERY else 3) for line in opened)
    assert all(line["errors"] for line in opened if line["kind"] == "EIO" and line["for_ever"])
