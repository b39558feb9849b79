"""Damaged weights are noticed when they are read, with their place; and the engine goes on."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert.output.writing import write_manifest

from flashllm import core
from flashllm.engine.loading import load_decoder
from flashllm.engine.local import Generation, Model, Sampling, open_model
from flashllm.errors import ChecksumMismatch, FlashllmError
from flashllm.flash.file_names import (
    BUNDLES_FILE,
    CHECKSUMS_FILE,
    PREDICTORS_FILE,
    RESIDENT_FILE,
    TENSOR_CHECKSUMS,
)
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import read_manifest
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.flash.store import Store
from flashllm.options import VERIFIES, Verify

PROMPT = [5, 17, 40, 8, 61, 33]
BUNDLE_FLIPS, RESIDENT_FLIPS = 300, 150


@pytest.fixture
def copy(sparse_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sparse_model, tmp_path / "copy"))


@pytest.fixture
def old_copy(copy: Path) -> Path:
    """As earlier versions converted it: without checksums of tensors."""
    manifest = read_manifest(copy)
    files = dict(manifest.files)
    for name in TENSOR_CHECKSUMS.values():
        del files[name]
        (copy / name).unlink()
    write_manifest(copy, dataclasses.replace(manifest, files=files))
    return copy


def xor(path: Path, at: int, mask: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def flips(first: int, end: int, count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Offsets and masks of one bit each."""
    random = np.random.default_rng(seed)
    for at in random.integers(first, end, count).tolist():
        yield int(at), 1 << int(random.integers(8))


def read_all(store: Store) -> None:
    """The bundles of all layers, in order."""
    count = store.header.bundles_per_layer
    buffer = core.Buffer(count * store.header.stride)
    for layer in range(store.header.n_layers):
        store.wait(store.submit_span(layer, 0, count, buffer), layer)


def drawn(model: Model, tokens: int = 20) -> Generation:
    """Tokens drawn at random: greedy ones of so small a model hardly depend on its weights."""
    return model.generate(PROMPT, tokens, Sampling(temperature=1.0, seed=4))


def answer(model_directory: Path, **options: object) -> list[int]:
    with open_model(model_directory, **options) as model:  # type: ignore[arg-type]
        return drawn(model).complete().ids


def swap_layers(directory: Path) -> None:
    path = directory / BUNDLES_FILE
    header = read_header(path)
    raw, length = bytearray(path.read_bytes()), header.bundles_per_layer * header.stride
    first, second = (slice(at, at + length) for at in (header.offset(0, 0), header.offset(1, 0)))
    raw[first], raw[second] = raw[second], raw[first]
    path.write_bytes(raw)


def zero_bundles(directory: Path) -> None:
    path = directory / BUNDLES_FILE
    start = read_header(path).data_offset
    raw = path.read_bytes()
    path.write_bytes(raw[:start].ljust(len(raw), b"\0"))


def test_no_flip_in_bundles_passes_in_silence(copy: Path) -> None:
    path, header = copy / BUNDLES_FILE, read_header(copy / BUNDLES_FILE)
    end = header.offset(header.n_layers - 1, header.bundles_per_layer - 1) + header.bundle_bytes
    tried = 0
    for at, mask in flips(header.data_offset, end, 2 * BUNDLE_FLIPS, seed=1):
        number, inside = divmod(at - header.data_offset, header.stride)
        if inside >= header.bundle_bytes or tried == BUNDLE_FLIPS:
            continue  # what pads bundles is not computed with
        tried += 1
        layer, bundle = divmod(number, header.bundles_per_layer)
        xor(path, at, mask)
        with Store(copy) as store:
            store.open_reader(True, 2)
            place = rf"ffn\.bundles, layer {layer}, bundle {bundle}, at offset {at - inside}: "
            with pytest.raises(ChecksumMismatch, match=place + r".*flashllm verify .*copy"):
                read_all(store)
        xor(path, at, mask)
    assert tried == BUNDLE_FLIPS


@pytest.mark.parametrize("made", ["copy", "old_copy"])
@pytest.mark.parametrize("name", [RESIDENT_FILE, PREDICTORS_FILE])
def test_no_flip_in_resident_weights_passes_in_silence(
    request: pytest.FixtureRequest, made: str, name: str
) -> None:
    directory: Path = request.getfixturevalue(made)
    path = directory / name
    index = read_tensor_index(path)
    first = min(record.offset for record in index.values())

    def load() -> None:
        with Store(directory) as store:
            if name == RESIDENT_FILE:
                store.load_resident(direct=True)
            else:
                store.load_predictors(direct=True)

    load()
    for at, mask in flips(first, path.stat().st_size, RESIDENT_FLIPS, seed=2):
        tensor = next(
            name for name, one in index.items() if one.offset <= at < one.offset + one.nbytes
        )
        xor(path, at, mask)
        where = f", tensor {tensor} at offset {index[tensor].offset}" if made == "copy" else ""
        with pytest.raises(ChecksumMismatch) as caught:
            load()
        assert f"{path}{where}: not what was written" in str(caught.value)
        xor(path, at, mask)
    for at, mask in flips(0, first, 40, seed=3):
        xor(path, at, mask)
        with pytest.raises(FlashllmError, match=name):
            load()
        xor(path, at, mask)
    load()


@pytest.mark.parametrize("verify", ["first", "always"])
@pytest.mark.parametrize("select", ["predicted", "oracle", "all"])
@pytest.mark.parametrize("damage", [swap_layers, zero_bundles])
def test_layers_in_the_wrong_place_and_zeros_are_noticed(
    copy: Path, verify: Verify, select: str, damage: Callable[[Path], None]
) -> None:
    damage(copy)
    with pytest.raises(ChecksumMismatch, match=r"ffn\.bundles, layer [01], bundle \d+"):
        answer(copy, verify=verify, select=select)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("select", ["predicted", "oracle"])
def test_the_engine_goes_on_when_the_damage_is_gone(copy: Path, select: str, direct: bool) -> None:
    expected = answer(copy, select=select)
    header = read_header(copy / BUNDLES_FILE)
    at = header.offset(2, 17) + 9
    xor(copy / BUNDLES_FILE, at, 4)
    with open_model(copy, select=select, direct=direct) as model:  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(ChecksumMismatch, match="layer 2, bundle 17, at offset"):
                drawn(model).complete()
        assert model.io_report()["bundles_damaged"] >= 2
        xor(copy / BUNDLES_FILE, at, 4)
        assert drawn(model).complete().ids == expected


def test_pinned_bundles_are_verified_when_they_are_read(copy: Path) -> None:
    xor(copy / BUNDLES_FILE, read_header(copy / BUNDLES_FILE).offset(0, 3), 1)
    with pytest.raises(ChecksumMismatch, match="layer 0, bundle 3, at offset"):
        open_model(copy, select="all", memory=8 << 30)


@pytest.mark.parametrize("overlap", ["none", "layer"])
def test_first_touch_while_decoding(copy: Path, overlap: str) -> None:
    """Without a prompt, bundles are first read into slots, some of them by prefetches."""
    for damaged in (False, True):
        if damaged:
            zero_bundles(copy)
        decoder, _, store = load_decoder(copy, select="predicted", overlap=overlap)  # type: ignore[arg-type]
        with store:
            if damaged:
                with pytest.raises(ChecksumMismatch, match=r"layer 0, bundle \d+, at offset"):
                    decoder.decode(PROMPT[0])
            else:
                decoder.decode(PROMPT[0])
                assert store.reader.stats()["bundles_verified"] > 0


def test_always_notices_what_is_damaged_while_it_is_open(copy: Path) -> None:
    with open_model(copy, window=1, verify="always") as model:
        generation = drawn(model, 100)
        next(generation)
        zero_bundles(copy)
        with pytest.raises(ChecksumMismatch, match=r"layer \d, bundle \d+, at offset"):
            list(generation)


def test_off_reads_what_is_there(copy: Path) -> None:
    expected = answer(copy, verify="off")
    zero_bundles(copy)
    with open_model(copy, verify="off") as model:
        found = drawn(model).complete().ids
        report = model.io_report()
        assert model.plan.split["checksums"] == 0
    assert found != expected
    assert (report["verify"], report["bundles_verified"]) == ("off", 0)


def test_answers_do_not_depend_on_it_and_bundles_are_counted(sparse_model: Path) -> None:
    answers, verified = [], {}
    for verify in VERIFIES:
        with open_model(sparse_model, verify=verify, window=1) as model:
            for _ in range(2):
                model.forget()
                answers.append(drawn(model).complete().ids)
            report = model.io_report()
            verified[verify] = report["bundles_verified"]
            assert (report["bundles_mismatched"], report["bundles_damaged"]) == (0, 0)
            spec = model.info.spec
    assert all(one == answers[0] for one in answers)
    bundles = spec.n_layers * spec.bundles_per_layer
    assert (verified["off"], verified["first"]) == (0, bundles)
    assert verified["always"] > bundles


@pytest.mark.parametrize("name", [CHECKSUMS_FILE, "activity.json", *TENSOR_CHECKSUMS.values()])
def test_small_files_are_verified_when_a_model_is_opened(copy: Path, name: str) -> None:
    raw = (copy / name).read_bytes()
    # A digit more or less in the recording would pass for a recording.
    at = raw.rindex(b"40") if name == "activity.json" else len(raw) // 2
    xor(copy / name, at, 1)
    with pytest.raises(ChecksumMismatch, match=rf"{name}: not what was written"):
        open_model(copy)
    open_model(copy, verify="off").close()


def test_the_plan_has_the_checksums(sparse_model: Path) -> None:
    bundles = 3 * 320
    expected = {"off": 0, "first": 4 * bundles + bundles // 8, "always": 4 * bundles}
    for verify in VERIFIES:
        with open_model(sparse_model, verify=verify, memory=8 << 30) as model:
            assert model.plan.verify == verify
            assert model.plan.split["checksums"] == expected[verify]
