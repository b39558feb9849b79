"""The log: small, harmless, without secrets, and never a reason to fail."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashllm.system import log
from flashllm.system.log import LOGGER, start_log, stop_log


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    stop_log()


def test_lines_are_harmless_and_one_record_cannot_look_like_two(tmp_path: Path) -> None:
    file = tmp_path / "new" / "flashllm.log"
    start_log(file)
    LOGGER.info("opened %s", "a\x1b]52;c;x\x07b\n2026-01-01 forged\udcff")
    first, second = file.read_text().splitlines()
    assert first.endswith("opened ab")
    assert second.startswith("    2026-01-01 forged")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_secrets_are_blotted_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "of-no-known-form")
    start_log(tmp_path / "log")
    try:
        raise ValueError("https://me:pass@host/x?token=abc of-no-known-form")
    except ValueError:
        LOGGER.exception("Authorization: hf_%s", "A1" * 17)
    text = (tmp_path / "log").read_text()
    assert "ValueError" in text
    assert not [secret for secret in ("pass", "abc", "of-no", "A1A1") if secret in text]


def test_it_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SIZE_MAX_BYTES", 2000)
    start_log(tmp_path / "log")
    for _ in range(400):
        LOGGER.info("x" * 100)
    files = list(tmp_path.iterdir())
    assert len(files) == 1 + log.OLD_FILES
    assert all(file.stat().st_size <= 2000 for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_without_a_place_for_it_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain").write_text("")
    start_log(tmp_path / "plain" / "log")
    LOGGER.info("lost")
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_no_noise(capsys: pytest.CaptureFixture[str]) -> None:
    start_log(Path("/dev/full"))
    LOGGER.info("lost")
    assert capsys.readouterr().err == ""


def test_starting_again_goes_on_elsewhere(tmp_path: Path) -> None:
    start_log(tmp_path / "a")
    start_log(tmp_path / "b")
    LOGGER.info("once")
    assert (tmp_path / "a").read_text() == ""
    assert (tmp_path / "b").read_text().count("once") == 1
