"""Downloads from a hub: laid out as huggingface_hub does it, checked, going on where they ended."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
from huggingface_hub.utils import WeakFileLock

from flashllm.errors import (
    AccessRefused,
    CannotCreate,
    ChecksumMismatch,
    DownloadFailed,
    ModelNotFound,
    NotEnoughSpace,
    UsageError,
)
from flashllm.library import hub, hub_names
from flashllm.library.download import ArrivingFile, CachedRepository
from flashllm.library.hub import RemoteFile
from flashllm.progress import SilentProgress
from tests.support.hub_server import COMMIT, HubServer, Served, serving

NAME = "org/tiny"
LARGE = "model.safetensors"
SIZE = 300_000
TOKEN = "hf_0123456789abcdefghij"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with one repository, of a user who has no token."""
    with serving() as running:
        generator = np.random.default_rng(0)
        running.repositories[NAME] = Served(
            {"config.json": b'{"a": 1}', "empty.txt": b"", LARGE: generator.bytes(SIZE)}
        )
        use_hub(monkeypatch, running, tmp_path)
        yield running
        huggingface_hub.close_session()


def use_hub(monkeypatch: pytest.MonkeyPatch, running: HubServer, home: Path) -> None:
    """Ask this server for everything, and wait for nothing between two tries."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", *hub_names.OFFLINE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_ENDPOINT", running.address)
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(home / "token"))
    quick = SimpleNamespace(sleep=lambda _: None, time=lambda: 0.0)
    monkeypatch.setattr("huggingface_hub.file_download.time", quick)
    huggingface_hub.close_session()


class Told(SilentProgress):
    """What was told."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.warnings: list[str] = []

    def advance(self, nbytes: int) -> None:
        assert nbytes >= 0
        self.nbytes += nbytes

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def fetched(tmp_path: Path, name: str = LARGE) -> tuple[CachedRepository, Told]:
    """A file that was fetched into a cache."""
    repository = hub.look(NAME)
    place, told = CachedRepository(repository, tmp_path / "hub"), Told()
    path = place.fetch(repository.files[name], told)
    assert path.read_bytes() == content(name)
    assert told.nbytes == repository.files[name].size
    return place, told


def content(name: str) -> bytes:
    raw = np.random.default_rng(0).bytes(SIZE)
    return {"config.json": b'{"a": 1}', "empty.txt": b"", LARGE: raw}[name]


def test_what_the_hub_tells(server: HubServer) -> None:
    repository = hub.look(NAME)
    raw = server.repositories[NAME].files[LARGE]
    assert (repository.name, repository.revision, repository.commit) == (NAME, "main", COMMIT)
    assert set(repository.files) == {"config.json", "empty.txt", LARGE}
    assert repository.files[LARGE].size == SIZE
    assert repository.files[LARGE].sha256 == hashlib.sha256(raw).hexdigest()
    assert repository.files["config.json"].sha256 is None
    # What git itself says.
    command = ["git", "hash-object", "--stdin"]
    found = subprocess.run(command, input=b'{"a": 1}', capture_output=True, check=True)
    assert repository.files["config.json"].git_sha1 == found.stdout.decode().strip()


@pytest.mark.parametrize("name", ["config.json", "empty.txt", LARGE])
def test_a_file_of_any_kind(server: HubServer, tmp_path: Path, name: str) -> None:
    place, told = fetched(tmp_path, name)
    assert told.warnings == []
    assert place.has(place.repository.files[name])
    server.requests.clear()
    assert place.fetch(place.repository.files[name], Told()).is_file()
    assert server.requests == []  # nothing is asked for twice


def test_the_cache_is_as_its_own_library_lays_it_out(server: HubServer, tmp_path: Path) -> None:
    repository = hub.look(NAME)
    place = CachedRepository(repository, tmp_path / "hub")
    for file in repository.files.values():
        place.fetch(file, SilentProgress())
    place.note_revision()
    report = scan_cache_dir(tmp_path / "hub")
    assert report.warnings == []
    (repo,) = report.repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.commit_hash, revision.refs) == (NAME, COMMIT, {"main"})
    assert {file.file_name for file in revision.files} == set(repository.files)
    for name in repository.files:
        path = hf_hub_download(NAME, name, cache_dir=tmp_path / "hub", local_files_only=True)
        assert path == str(place.snapshot / name)
    theirs = tmp_path / "theirs"
    options = {"cache_dir": theirs, "endpoint": server.address}
    snapshot_download(NAME, **options)
    mine = sorted(p.relative_to(tmp_path / "hub") for p in (tmp_path / "hub").glob("models--*/*/*"))
    same = [p.relative_to(theirs) for p in theirs.glob("models--*/*/*") if p.parent.name != "trees"]
    assert mine == sorted(same)
    for path in mine:
        assert os.path.islink(theirs / path) == os.path.islink(tmp_path / "hub" / path)


def test_nothing_is_told_of_this_machine(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise AssertionError("who runs this is not to be found out")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr("huggingface_hub.utils._headers.detect_agent", fail)
    fetched(tmp_path)
    assert {one.path.split("/")[1] for one in server.requests} == {"api", "org", "cdn"}
    agents = {one.headers["user-agent"] for one in server.requests}
    assert all("torch" not in agent and agent.startswith("flashllm/") for agent in agents)


def test_large_files_come_from_elsewhere_without_the_token(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetched(tmp_path)
    (sent,) = [one for one in server.requests if one.path.startswith("/cdn/")]
    (asked,) = [one for one in server.requests if "/resolve/" in one.path]
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"
    assert "authorization" not in sent.headers


@pytest.mark.parametrize("cuts", [[15_000], [0, 250_000], [100_000] * 12], ids=str)
def test_a_connection_that_breaks_off_is_taken_up(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: list[int]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    server.faults.cut[LARGE] = list(cuts)
    place, _ = fetched(tmp_path)
    ranges = [one.headers.get("range") for one in server.requests if one.path.startswith("/cdn/")]
    assert ranges[0] is None
    assert all(part is None or part.startswith("bytes=") for part in ranges)
    assert any(part is not None for part in ranges)
    assert not list(place.snapshot.parents[1].rglob("*.incomplete"))


def test_what_came_before_an_end_is_not_fetched_again(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    repository = hub.look(NAME)
    place = CachedRepository(repository, tmp_path / "hub")

    class Stopping(Told):
        def advance(self, nbytes: int) -> None:
            super().advance(nbytes)
            if self.nbytes >= 120_000:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.fetch(repository.files[LARGE], Stopping())
    assert not place.has(repository.files[LARGE])
    assert place.bytes_here(repository.files[LARGE]) == 120_000
    server.requests.clear()
    fetched(tmp_path)
    (sent,) = [one for one in server.requests if one.path.startswith("/cdn/")]
    assert sent.headers["range"] == "bytes=120000-"


def test_a_server_that_knows_no_parts_of_files(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    server.faults.no_ranges = True
    server.faults.cut[LARGE] = [120_000]
    fetched(tmp_path)
    repository = hub.look(NAME)
    with pytest.raises(DownloadFailed, match="--keep-source"):
        hub.read_start(repository, repository.files[LARGE], 1000)
    server.faults.no_ranges = False
    start = hub.read_start(repository, repository.files[LARGE], 1000)
    assert start == server.repositories[NAME].files[LARGE][:1000]


@pytest.mark.parametrize("name", ["config.json", LARGE])
def test_a_wrong_hash_is_an_error_and_nothing_is_kept(
    server: HubServer, tmp_path: Path, name: str
) -> None:
    server.faults.damage[name] = 5
    repository = hub.look(NAME)
    place = CachedRepository(repository, tmp_path / "hub")
    with pytest.raises(
        ChecksumMismatch, match=rf"{name}: what came has the hash [0-9a-f]+ instead"
    ):
        place.fetch(repository.files[name], SilentProgress())
    assert [p for p in (tmp_path / "hub").rglob("*") if p.is_file() and p.suffix != ".lock"] == []
    with pytest.raises(ChecksumMismatch):
        hub.read_whole(repository, repository.files[name], 1 << 20)
    server.faults.damage.clear()
    fetched(tmp_path, name)


@pytest.mark.parametrize("left", [b"wrong" * 1000, b"x" * (SIZE + 1), b"x" * SIZE], ids=len)
def test_a_beginning_that_is_wrong_is_fetched_once_more(
    server: HubServer, tmp_path: Path, left: bytes
) -> None:
    repository = hub.look(NAME)
    blobs = tmp_path / "hub" / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{repository.files[LARGE].etag}.incomplete").write_bytes(left)
    place, told = CachedRepository(repository, tmp_path / "hub"), Told()
    path = place.fetch(repository.files[LARGE], told)
    assert path.read_bytes() == server.repositories[NAME].files[LARGE]
    assert told.nbytes == SIZE


def test_a_blob_that_was_cut_short_is_fetched_anew(server: HubServer, tmp_path: Path) -> None:
    place, _ = fetched(tmp_path)
    (place.snapshot / LARGE).resolve().write_bytes(b"short")
    assert not place.has(place.repository.files[LARGE])
    fetched(tmp_path)


def full_after(monkeypatch: pytest.MonkeyPatch, nbytes: int, number: int) -> None:
    """A disk that takes so many bytes of a file."""
    real = ArrivingFile.__init__

    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, view: memoryview) -> int:
            room = nbytes - self._file.tell()
            if room <= 0:
                raise OSError(number, os.strerror(number))
            return int(self._file.write(view[:room]))

    def init(self: ArrivingFile, *arguments: Any) -> None:
        real(self, *arguments)
        self._file = Full(self._file)  # type: ignore[assignment]

    monkeypatch.setattr(ArrivingFile, "__init__", init)


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, NotEnoughSpace), (errno.EDQUOT, NotEnoughSpace), (errno.EIO, CannotCreate)],
)
def test_a_full_disk_keeps_what_it_holds(
    server: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[CannotCreate],
) -> None:
    repository = hub.look(NAME)
    place = CachedRepository(repository, tmp_path / "hub")
    with monkeypatch.context() as patch:
        full_after(patch, 70_000, number)
        with pytest.raises(CannotCreate) as caught:
            place.fetch(repository.files[LARGE], SilentProgress())
    assert type(caught.value) is error
    assert place.bytes_here(repository.files[LARGE]) == 70_000
    server.requests.clear()
    fetched(tmp_path)
    (sent,) = [one for one in server.requests if one.path.startswith("/cdn/")]
    assert sent.headers["range"] == "bytes=70000-"


def test_another_program_that_fetches_it_is_waited_for(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "WAIT_SECONDS", 0.05)
    repository = hub.look(NAME)
    file = repository.files[LARGE]
    folder = tmp_path / "hub" / ".locks" / "models--org--tiny"
    folder.mkdir(parents=True)
    place, told = CachedRepository(repository, tmp_path / "hub"), Told()
    held, done = threading.Event(), threading.Event()

    def other() -> None:
        """Holds the lock as huggingface_hub does, and puts the file there."""
        with WeakFileLock(folder / f"{file.etag}.lock"):
            held.set()
            assert done.wait(30)
            blobs = tmp_path / "hub" / "models--org--tiny" / "blobs"
            (blobs / file.etag).write_bytes(server.repositories[NAME].files[LARGE])

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(30)
    real = told.warn
    told.warn = lambda text: (real(text), done.set())[0]  # type: ignore[method-assign]
    path = place.fetch(file, told)
    thread.join()
    assert told.warnings == [f"{NAME}: {LARGE}: another program is fetching it; waiting for that"]
    assert path.read_bytes() == server.repositories[NAME].files[LARGE]
    assert server.sent(LARGE) == []


def test_a_file_system_without_links_has_the_files_themselves(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    place, _ = fetched(tmp_path)
    assert not (place.snapshot / LARGE).is_symlink()
    assert place.has(place.repository.files[LARGE])


def test_drop_removes_a_file_and_its_content(server: HubServer, tmp_path: Path) -> None:
    place, _ = fetched(tmp_path)
    place.drop(place.repository.files[LARGE])
    place.drop(place.repository.files[LARGE])
    assert not list((tmp_path / "hub").rglob("*.safetensors"))
    assert not list((tmp_path / "hub" / "models--org--tiny" / "blobs").iterdir())


def test_revisions_are_noted(server: HubServer, tmp_path: Path) -> None:
    server.repositories[NAME].branches["v1.0"] = COMMIT
    server.repositories[NAME].branches["refs/pr/7"] = COMMIT
    for revision in ("main", "v1.0", "refs/pr/7", COMMIT):
        CachedRepository(hub.look(NAME, revision), tmp_path).note_revision()
    refs = tmp_path / "models--org--tiny" / "refs"
    names = {str(p.relative_to(refs)): p.read_text() for p in refs.rglob("*") if p.is_file()}
    assert names == dict.fromkeys(("main", "v1.0", "refs/pr/7"), COMMIT)


# What the hub, the network and libraries may answer.


def test_a_repository_that_is_not_there(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match=r"no such repository, or it is private.*HF_TOKEN"):
        hub.look("org/nothing")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ModelNotFound, match=r"or the token's account may not read it"):
        hub.look("org/nothing")


def test_a_private_repository(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.repositories[NAME].private = True
    server.repositories[NAME].readers = (TOKEN,)
    with pytest.raises(ModelNotFound, match=r"for a private one, set HF_TOKEN to a token"):
        hub.look(NAME)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub.look(NAME).commit == COMMIT


def test_a_gated_repository(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repositories[NAME].gated = True
    server.repositories[NAME].readers = (TOKEN,)
    repository = hub.look(NAME)
    page = f"{server.address}/{NAME}"
    with pytest.raises(
        AccessRefused, match=rf"is gated. Accept its licence at {page}, then set HF"
    ):
        hub.read_whole(repository, repository.files["config.json"], 1000)
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else_123456")
    with pytest.raises(AccessRefused, match="may not read it yet") as caught:
        hub.read_whole(repository, repository.files["config.json"], 1000)
    assert caught.value.exit_code == 77
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetched(tmp_path)


def test_a_revision_that_is_not_there(server: HubServer) -> None:
    with pytest.raises(ModelNotFound, match=r"has no branch, tag or commit v9; leave @v9 out"):
        hub.look(NAME, "v9")


def test_a_file_that_is_gone(server: HubServer, tmp_path: Path) -> None:
    repository = hub.look(NAME)
    del server.repositories[NAME].files["config.json"]
    with pytest.raises(ModelNotFound, match=r"has no file config\.json any more"):
        hub.read_whole(repository, repository.files["config.json"], 1000)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, ModelNotFound, "no such repository"),
        (403, AccessRefused, "the token must be allowed"),
        (404, ModelNotFound, "no such repository"),
        (429, DownloadFailed, "answers 429; wait a few minutes"),
        (500, DownloadFailed, "answers 500; try again later"),
        (503, DownloadFailed, "answers 503; try again later"),
    ],
)
def test_every_other_answer(
    server: HubServer, status: int, error: type[Exception], words: str
) -> None:
    server.faults.status["api"] = [status] * 10
    with pytest.raises(error, match=words):
        hub.look(NAME)


def test_no_network(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        DownloadFailed, match=r"cannot be fetched from http://127\.0\.0\.1:9: .*HF_"
    ) as no:
        hub.look(NAME)
    assert no.value.exit_code == 69


def test_what_is_no_hub(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubServer, "address", property(lambda self: "not an address"))
    for endpoint in ("not an address", "ftp://somewhere", "http://"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(DownloadFailed):
            hub.look(NAME)


@pytest.mark.parametrize(
    "answer", [b"[]", b"{}", b"no JSON", b'{"id": "x", "sha": "../../etc", "siblings": []}']
)
def test_answers_that_make_no_sense(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr("tests.support.hub_server.json.dumps", lambda _: answer.decode())
    with pytest.raises(DownloadFailed):
        hub.look(NAME)


def test_files_that_are_described_oddly_are_left_out(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lfs = {"sha256": "../x", "size": 1, "pointerSize": 1}
    odd = [
        {"rfilename": "a", "size": -1, "blobId": "0" * 40},
        {"rfilename": "b", "size": "1", "blobId": "0" * 40},
        {"rfilename": "c", "size": 1, "blobId": "../../x"},
        {"rfilename": "d", "size": 1},
        {"rfilename": "e", "size": 1, "blobId": "0" * 40, "lfs": lfs},
        {"rfilename": "f", "size": 1, "blobId": "0" * 40},
    ]  # fmt: skip
    found = iter(odd)
    monkeypatch.setattr("tests.support.hub_server._sibling", lambda *_: next(found))
    server.repositories[NAME].files = {str(n): b"" for n in range(len(odd))}
    assert set(hub.look(NAME).files) == {"f"}


@pytest.mark.parametrize("variable", hub_names.OFFLINE_VARIABLES)
def test_offline(server: HubServer, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(DownloadFailed, match=f"{variable} is set, so nothing is fetched"):
        hub.look(NAME)
    assert server.requests == []


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("org/name", ("org/name", "")),
        ("name", ("name", "")),
        ("org/name/", ("org/name", "")),
        ("org/name@v1.0", ("org/name", "v1.0")),
        ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
        ("https://huggingface.co/org/na-me_1.5", ("org/na-me_1.5", "")),
        ("huggingface.co/org/name/tree/dev/", ("org/name", "dev")),
        ("hf.co/org/name@dev", ("org/name", "dev")),
        ("hf://org/name", ("org/name", "")),
        ("hf:org/name@dev", ("org/name", "dev")),
    ],
)
def test_names(typed: str, found: tuple[str, str]) -> None:
    assert hub_names.RepositoryId.read(typed) == hub_names.RepositoryId(*found)
    assert hub_names.RepositoryId.parse(typed) == hub_names.RepositoryId(*found)


@pytest.mark.parametrize(
    "typed",
    ["", "org/name/more", "org/na me", "../name", "org/..", "org/a--b", "org/name@",
     "org/name@../x", "org/name@a b", "https://example.com/a/b", "org/\x1b[31m", "/etc/passwd"],
)  # fmt: skip
def test_names_that_are_none(typed: str) -> None:
    with pytest.raises(UsageError):
        hub_names.RepositoryId.read(typed)
    assert hub_names.RepositoryId.parse(typed) is None


def test_what_a_library_would_print_is_told_clean(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    told = Told()
    logger = logging.getLogger("huggingface_hub.file_download")
    before = logging.getLogger("huggingface_hub").handlers
    with hub.warnings_to(told):
        logger.warning("\x1b]0;title\x07bad %s\nsecond line", TOKEN)
    assert told.warnings == ["bad ***"]
    assert logging.getLogger("huggingface_hub").handlers is before
    assert capsys.readouterr().err == ""


def test_no_more_is_taken_than_was_told(tmp_path: Path) -> None:
    file = RemoteFile("x", 10, None, "0" * 40)
    with ArrivingFile(tmp_path / "x", file, SilentProgress()) as arriving:
        arriving.write(b"12345")
        with pytest.raises(DownloadFailed, match="sends more than the 10 bytes"):
            arriving.write(b"123456")
        assert arriving.tell() == 5
        assert not arriving.is_right()


def test_a_place_that_cannot_be_written(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("a file")
    repository = hub.look(NAME)
    with pytest.raises(CannotCreate, match="cannot be written"):
        CachedRepository(repository, tmp_path / "hub").fetch(
            repository.files[LARGE], SilentProgress()
        )
