"""What a text stands for where a model or a checkpoint is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flashllm.convert.output.destination import lock_directory

import flashllm
from flashllm.conversations.store import SessionStore
from flashllm.engine.local import load_info
from flashllm.errors import FlashllmError, LayoutError, ModelNotFound, NotACheckpoint
from flashllm.library.directories import name_of, shown_name
from flashllm.library.library import Library
from flashllm.library.models import ModelChoice
from flashllm.library.names import DEMO, ModelNames, NamedModel, usual_names
from flashllm.library.open import checkpoint_directory, model_directory, usual_destination
from tests.library.test_hf_cache import COMMIT, put
from tests.library.test_scan import rewrite_manifest

GOLDEN = Path(__file__).parents[1] / "flash" / "golden"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of its own, in a directory of its own."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home" / "models"


def model(directory: Path) -> Path:
    """A whole converted model."""
    shutil.copytree(GOLDEN / "converted", directory)
    return directory


def refusal(text: str, names: ModelNames | None = None) -> str:
    with pytest.raises(FlashllmError) as raised:
        (names or usual_names()).find(text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/big.flash", "big"),
        ("/models/big", "big"),
        ("big.flash/", "big"),
        ("/cache/models/demo-b8d695602985872e", "demo"),
        ("/cache/models/demo-moe-b8d695602985872e", "demo-moe"),
        ("/cache/models/demo-b8d6", "demo-b8d6"),
        ("/models/.flash", ".flash"),
        ("/models/a.b.flash", "a.b"),
        ("", ""),
        ("/", ""),
    ],
)
def test_the_one_name_of_a_model(path: str, name: str) -> None:
    assert name_of(path) == name


def test_a_name_is_shown_harmless() -> None:
    assert shown_name("/models/\x1b[2Jbig\n.flash") == "big"


def test_the_names_are_those_that_ls_prints(
    home: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flashllm.cli.main import main

    model(home / "one.flash")
    model(home / "two")
    broken = model(home / "broken.flash")
    (broken / "ffn.bundles").unlink()
    with SessionStore() as store:
        store.create(model=str(model(place / "used.flash")))
        store.create(model=str(place / "gone.flash"))
    assert usual_names().names() == ["demo", "demo-moe", "used", "broken", "one", "two"]
    assert main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = {line.split()[0] for line in lines[1:] if not line.startswith(" ")}
    assert first == {"demo", "demo-moe", "used", "gone", "broken", "one", "two"}


def test_a_path_goes_before_a_name(home: Path, place: Path) -> None:
    model(home / "big.flash")
    assert usual_names().find("big").path == home / "big.flash"
    assert usual_names().find("big.flash").path == home / "big.flash"
    model(place / "big")
    assert usual_names().find("big").path == Path("big")
    assert model_directory("big") == Path("big")


def test_a_directory_without_a_model_hides_no_name(home: Path, place: Path) -> None:
    model(home / "big.flash")
    (place / "big").mkdir()
    (place / "demo").mkdir()
    (place / "demo-moe").mkdir()
    (place / "big" / "notes.txt").touch()
    assert usual_names().find("big").path == home / "big.flash"
    assert usual_names().find("demo") == DEMO
    assert usual_names().find("demo-moe") == NamedModel("demo-moe", None)
    assert usual_names().find("./big").path == Path("./big")  # opening says that it is none


def test_a_path_of_python_is_never_a_name(home: Path) -> None:
    model(home / "big.flash")
    assert model_directory(Path("big")) == Path("big")
    with pytest.raises(ModelNotFound, match="there is no such model"):
        flashllm.open_model(Path("big"))


def test_python_opens_by_name(home: Path, sparse_model: Path) -> None:
    shutil.copytree(sparse_model, home / "big.flash")
    with flashllm.open_model("big") as opened:
        assert opened.info.directory == str(home / "big.flash")
    with pytest.raises(ModelNotFound, match="did you mean big"):
        flashllm.open_model("bg")


def test_the_demo_is_a_name(demo: Path) -> None:
    assert usual_names().find("demo") == DEMO
    assert DEMO.choice == ModelChoice(None)
    assert NamedModel.at(demo).choice == ModelChoice(None)
    assert usual_names().find(str(demo)) == NamedModel("demo", demo)


def test_two_models_of_one_name(home: Path, tmp_path: Path) -> None:
    model(home / "big.flash")
    other = model(tmp_path / "disk" / "big")
    names = ModelNames((home, other.parent))
    words = refusal("big", names)
    assert words.startswith("2 models are called 'big': ")
    assert str(home / "big.flash") in words
    assert str(other) in words
    assert names.find("big.flash").path == home / "big.flash"  # what tells them apart
    assert names.find(str(other)).path == other
    model(home / "demo.flash")
    words = refusal("demo", ModelNames((home,)))
    assert "the demo that comes with flashllm and " in words
    assert "demo.flash" in words


def test_one_directory_found_twice_is_one_model(home: Path, tmp_path: Path) -> None:
    model(home / "big.flash")
    (tmp_path / "link").symlink_to(home)
    names = ModelNames((home, tmp_path / "link"), (home / "big.flash",))
    assert [found.name for found in names.all()] == ["demo", "demo-moe", "big"]
    assert names.find("big").path == home / "big.flash"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bgi", "no model of that name; did you mean big?"),
        ("Big", "no model of that name; did you mean big?"),
        ("demmo", "did you mean demo or demo-moe?"),
        ("zzz", "no model of that name. `flashllm ls` lists"),
        ("zzz:7b", "names have no tags here"),
        ("./zzz", "no such directory"),
        ("~/zzz", "no such directory"),
        ("org/tyni", "did you mean org/tiny?"),
        ("tiny", "did you mean org/tiny?"),
        ("zzz/zzz", "`flashllm pull zzz/zzz` fetches one"),
        ("", "the name of the model is empty"),
        ("a\0b", "no model of that name"),
        ("x" * 300, "no model of that name"),
        ("x" * 300 + "/y", "no such directory"),
        ("two words", "no model of that name"),
        ("..", "not a converted model"),
    ],
)
def test_what_is_not_there_leads_on(text: str, expected: str, home: Path, tmp_path: Path) -> None:
    model(home / "big.flash")
    (tmp_path / "hub" / "models--org--tiny").mkdir(parents=True)
    with pytest.raises(FlashllmError) as raised:
        load_info(model_directory(text))
    assert expected in str(raised.value)
    assert str(raised.value).startswith((text, "the name", str(Path(text))))


def test_a_model_that_is_being_written(home: Path) -> None:
    (home / f"big.flash.partial-{os.getpid()}").mkdir(parents=True)
    words = f"big: is being converted, by process {os.getpid()}; wait until it is done"
    assert refusal("big") == words
    assert "big.flash: is being converted" in refusal(str(home / "big.flash"))
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    (home / f"old.flash.partial-{dead.pid}").mkdir()
    assert "is being converted" not in refusal("old")


def test_a_model_that_is_being_pulled(home: Path) -> None:
    partial = home / "big.flash.partial-pull"
    partial.mkdir(parents=True)
    ended = "big: its conversion ended early and lies in big.flash.partial-pull; the same"
    assert refusal("big").startswith(ended)
    lock = lock_directory(partial)
    try:
        assert refusal("big").startswith("big: is being fetched and converted by another process")
        assert "big.flash: is being fetched" in refusal(str(home / "big.flash"))
    finally:
        os.close(lock)
    assert refusal("big").startswith(ended)


def test_what_another_program_made_is_called_what_it_is(place: Path) -> None:
    (place / "model.gguf").write_bytes(b"GGUF")
    words = refusal("model.gguf")
    assert words.startswith("model.gguf: a GGUF file")
    assert "flashllm convert" in words
    (place / "model.onnx").write_bytes(b"x")
    with pytest.raises(NotACheckpoint, match="an ONNX model"):
        usual_names().find_checkpoint("model.onnx")


def test_a_file_in_gguf_is_a_checkpoint(place: Path) -> None:
    (place / "model.gguf").write_bytes(b"GGUF")
    assert usual_names().find_checkpoint("model.gguf") == Path("model.gguf")
    (place / "folder").mkdir()
    (place / "model.gguf").rename(place / "folder" / "a-00001-of-00002.gguf")
    assert usual_names().find_checkpoint("folder") == Path("folder")
    assert refusal("folder").startswith("folder: a directory with a GGUF file, not yet a converted")
    library = Library(home=place)
    wanted = place / "a.flash"
    assert library.destination(place / "folder" / "a-00001-of-00002.gguf") == wanted
    (place / "folder" / "b.gguf").touch()
    with pytest.raises(NotACheckpoint, match="holds several models in GGUF"):
        usual_names().find_checkpoint("folder")


# org/name of the Hugging Face cache


def test_a_checkpoint_of_the_cache(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path / "hub")
    for text in (
        "org/tiny",
        "org/tiny@main",
        f"org/tiny@{COMMIT[:7]}",
        f"org/tiny@{COMMIT}",
        "https://huggingface.co/org/tiny",
        "https://huggingface.co/org/tiny/tree/main",
        "hf.co/org/tiny",
    ):
        assert checkpoint_directory(text) == snapshot, text
    with pytest.raises(ModelNotFound, match="no revision 'v2' of it, only main, 0123456"):
        checkpoint_directory("org/tiny@v2")
    with pytest.raises(ModelNotFound, match=r"no model of that name|no such"):
        checkpoint_directory("org/tiny@../../x")


def test_a_repository_without_an_organisation(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path / "hub", "models--old")
    assert checkpoint_directory("old") == snapshot
    with pytest.raises(ModelNotFound, match="no such checkpoint"):
        checkpoint_directory("older-still")


def test_revisions_are_chosen(tmp_path: Path) -> None:
    repository, first = put(tmp_path / "hub")
    _, second = put(tmp_path / "hub", commit="f" * 40)
    assert checkpoint_directory("org/tiny") == second  # refs/main is the later one
    assert checkpoint_directory(f"org/tiny@{COMMIT[:9]}") == first
    (repository / "refs" / "main").unlink()
    with pytest.raises(ModelNotFound, match="no files of it"):
        checkpoint_directory("org/tiny")
    shutil.rmtree(second)
    assert checkpoint_directory("org/tiny") == first  # the only one


def test_a_directory_goes_before_a_repository(place: Path, tmp_path: Path) -> None:
    put(tmp_path / "hub")
    (place / "org" / "tiny").mkdir(parents=True)
    assert checkpoint_directory("org/tiny") == Path("org/tiny")


def test_a_cache_that_is_being_written(tmp_path: Path) -> None:
    repository, snapshot = put(tmp_path / "hub")
    (snapshot / "model.safetensors").unlink()
    (repository / "blobs" / "0123.incomplete").touch()
    with pytest.raises(NotACheckpoint, match="download ended early; `flashllm pull org/tiny`"):
        checkpoint_directory("org/tiny")
    assert checkpoint_directory("org/tiny", whole=False) == snapshot
    locks = tmp_path / "hub" / ".locks" / "models--org--tiny"
    locks.mkdir(parents=True)
    (locks / "0123.lock").touch()
    with pytest.raises(NotACheckpoint, match="ended early"):  # the file alone says nothing
        checkpoint_directory("org/tiny")
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1]);"
        "fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, locks / "0123.lock"], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            with pytest.raises(NotACheckpoint, match="another program is fetching it now"):
                checkpoint_directory("org/tiny")
            shutil.rmtree(snapshot)
            with pytest.raises(ModelNotFound, match="another program is fetching it now"):
                checkpoint_directory("org/tiny")
        finally:
            other.kill()


def test_links_of_directories_are_not_followed(tmp_path: Path) -> None:
    repository, _ = put(tmp_path / "elsewhere")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "models--org--tiny").symlink_to(repository)
    with pytest.raises(ModelNotFound, match="has no such repository"):
        checkpoint_directory("org/tiny")


def test_only_the_checkpoint_is_there(tmp_path: Path) -> None:
    put(tmp_path / "hub")
    with pytest.raises(LayoutError, match="first: flashllm convert org/tiny"):
        model_directory("org/tiny")
    with pytest.raises(LayoutError, match="first: flashllm convert org/tiny@main"):
        model_directory("org/tiny@main")


def test_the_model_that_was_made_of_a_checkpoint(home: Path, tmp_path: Path) -> None:
    from flashllm.convert import convert

    _, snapshot = put(tmp_path / "hub")
    destination = usual_destination(snapshot)
    assert destination == home / "tiny.flash"
    convert(snapshot, destination)
    assert model_directory("tiny") == destination
    assert model_directory("org/tiny") == destination
    assert model_directory("org/tiny@main") == destination
    _, second = put(tmp_path / "hub", commit="f" * 40, n_layers=1)
    with pytest.raises(LayoutError, match="first: flashllm convert org/tiny@ffff"):
        model_directory("org/tiny@ffffffff")
    convert(second, home / "other")
    with pytest.raises(ModelNotFound, match=r"2 models were made of org/tiny: .*other"):
        model_directory("org/tiny")
    assert model_directory("org/tiny@ffffffff") == home / "other"


def test_a_manifest_of_strangers_names_no_repository(home: Path, tmp_path: Path) -> None:
    put(tmp_path / "hub")
    rewrite_manifest(model(home / "odd"), name="org/tiny", source={"files": {"config.json": 3}})
    assert model_directory("org/tiny") == home / "odd"  # its manifest says so
    with pytest.raises(LayoutError):  # the hashes do not
        model_directory("org/tiny@main")


def test_a_converted_model_is_no_checkpoint(home: Path) -> None:
    model(home / "big.flash")
    with pytest.raises(NotACheckpoint, match="a converted model already"):
        checkpoint_directory("big")
    for name in ("demo", "demo-moe"):
        with pytest.raises(NotACheckpoint, match="it comes with flashllm"):
            checkpoint_directory(name)


def test_bad_settings_leave_out_their_places(home: Path, tmp_path: Path) -> None:
    model(home / "big.flash")
    model(tmp_path / "disk" / "second")
    file = tmp_path / "home" / "config.toml"
    file.write_text(f'nonsense = 1\n[chat]\nmodel_dirs = ["{tmp_path / "disk"}"]')
    assert usual_names().names() == ["demo", "demo-moe", "second", "big"]
    file.write_text("= =")
    assert usual_names().names() == ["demo", "demo-moe", "big"]
