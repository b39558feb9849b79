"""Tokenizers: text to ids and back, streams that split no character, text that controls nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from flashllm.errors import ModelError, UnsupportedModel
from flashllm.tokenizer.chat_template import Message
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer

MARKERS = ("<|user|>", "<|assistant|>", "<|im_start|>", "<|im_end|>")
# One marker is special, one is not flagged as such, one is a word that only the template reveals.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '<|assistant|>' + message.content + eos_token }}{% else %}"
    "{{ '<|' + message.role + '|>' + message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{# Turnmark <|system|> #}"
)
SENTENCES = [
    "What does ocean mean?",
    "An ocean is a large body of water.",
    "user assistant im start end s unk pad Turnmark system 0123456789",
    "Grüße aus Köln, naïve café, <b>tags</b> | [INST] and code: x == y;",
] * 20


def write(directory: Path, name: str, value: object) -> None:
    (directory / name).write_text(json.dumps(value), encoding="utf-8")


def write_config(directory: Path, **more: object) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE, **more}
    write(directory, "tokenizer_config.json", config)


def make_sentencepiece(directory: Path) -> None:
    with (directory / "tokenizer.model").open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_writer=stream,
            vocab_size=400,
            byte_fallback=True,
            hard_vocab_limit=False,
            pad_id=3,
            control_symbols=["<|user|>", "<|assistant|>"],
            user_defined_symbols=["<|im_start|>", "<|im_end|>", "<|system|>", "Turnmark", "7"],
            minloglevel=2,
        )
    write_config(directory)


def _finish_json(tokenizer: tokenizers.Tokenizer, directory: Path) -> None:
    tokenizer.add_special_tokens(["<s>", "</s>", "<|user|>", "<|im_start|>", "<|system|>"])
    tokenizer.add_tokens(["<|assistant|>", "<|im_end|>", "Turnmark", "    ", "7"])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    write_config(directory)


def make_byte_level_json(directory: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    _finish_json(tokenizer, directory)


def make_byte_fallback_json(directory: Path) -> None:
    tokenizer = tokenizers.Tokenizer(
        models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = description["added_tokens"][:3]  # bytes are no added tokens
    _finish_json(tokenizers.Tokenizer.from_str(json.dumps(description)), directory)


def make_unigram_json(directory: Path) -> None:
    # Every marker is an ordinary piece here, so that its rules alone would find it in a text.
    letters = sorted({character for line in SENTENCES for character in line.replace(" ", "\u2581")})
    pieces = ["<s>", "</s>", *MARKERS, "<|system|>", "Turnmark"]
    vocab = [("<unk>", 0.0), *((piece, -1.0) for piece in pieces), ("    ", -2.0), ("7", -3.0)]
    vocab += [(letter, -5.0) for letter in letters if letter != "7"]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _finish_json(tokenizer, directory)


def make_vocab_and_merges(directory: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", *MARKERS, "<|system|>", "Turnmark"]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=specials,
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    write(directory, "vocab.json", model["vocab"])
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (directory / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    added = {str(index): {"content": content} for index, content in enumerate(specials)}
    write_config(directory, bos_token={"content": "</s>"}, added_tokens_decoder=added)


MAKERS: dict[str, Callable[[Path], None]] = {
    "sentencepiece": make_sentencepiece,
    "byte_level": make_byte_level_json,
    "byte_fallback": make_byte_fallback_json,
    "unigram": make_unigram_json,
    "vocab_and_merges": make_vocab_and_merges,
}
LOSSLESS = ("sentencepiece", "byte_level", "byte_fallback", "vocab_and_merges")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, make in MAKERS.items():
        made[name] = tmp_path_factory.mktemp(name)
        make(made[name])
    return made


@pytest.fixture(scope="module")
def all_tokenizers(directories: dict[str, Path]) -> dict[str, Tokenizer]:
    loaded = {name: load_tokenizer(directory) for name, directory in directories.items()}
    return {name: tokenizer for name, tokenizer in loaded.items() if tokenizer is not None}


@pytest.fixture(params=MAKERS)
def tokenizer(request: pytest.FixtureRequest, all_tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return all_tokenizers[request.param]


def chat(*contents: str) -> list[Message]:
    roles: tuple[Any, ...] = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def control_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return tokenizer.vocabulary.control_ids


def test_encode_puts_the_beginning_in_front(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("An ocean is a large body of water.")
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.bos_id not in ids[1:]
    assert tokenizer.decode(ids) == "An ocean is a large body of water."


def test_empty_text_is_the_beginning_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == [tokenizer.bos_id]
    assert tokenizer.decode([]) == ""


def test_the_whole_vocabulary_decodes(tokenizer: Tokenizer) -> None:
    for token in range(tokenizer.vocab_size + 3):
        assert isinstance(tokenizer.decode([token]), str)


def test_a_template_makes_control_ids(tokenizer: Tokenizer) -> None:
    controls = control_ids(tokenizer)
    ids = tokenizer.encode_chat(chat("ocean", "water", "body"))
    user, assistant, eos = controls["<|user|>"], controls["<|assistant|>"], tokenizer.eos_ids[0]
    structure = [token for token in ids if token in controls.values()]
    assert structure == [tokenizer.bos_id, user, assistant, eos, user, assistant]
    assert ids[0] == tokenizer.bos_id
    assert ids[-1] == assistant


def test_every_marker_in_a_text_stays_text(tokenizer: Tokenizer) -> None:
    controls = control_ids(tokenizer)
    assert {"<|user|>", "<|assistant|>", "<|im_start|>", "<|im_end|>", "Turnmark"} <= set(controls)
    plain = set(controls.values()) - {tokenizer.vocabulary.encode(["\U0001f30a"])[-1]}
    structure = [t for t in tokenizer.encode_chat(chat("a", "b", "c")) if t in plain]
    for marker in controls:
        for text in (marker, f"a{marker}b", f" {marker}\n", f"{marker}{marker} x {marker}"):
            assert plain.isdisjoint(tokenizer.encode(text)[1:]), (marker, text)
    text = "".join(f"{marker} a{marker}b\n{marker}" for marker in controls)
    ids = tokenizer.encode_chat(chat(text, text, text))
    assert [token for token in ids if token in plain] == structure


def test_markers_split_over_messages_and_template_stay_text(tokenizer: Tokenizer) -> None:
    controls = control_ids(tokenizer)
    structure = [t for t in tokenizer.encode_chat(chat("a", "b", "c")) if t in controls.values()]
    ids = tokenizer.encode_chat(chat("<|us", "er|><|", "user|>"))
    assert [token for token in ids if token in controls.values()] == structure


def test_words_and_white_space_that_a_vocabulary_adds_are_text(
    all_tokenizers: dict[str, Tokenizer],
) -> None:
    for tokenizer in all_tokenizers.values():
        assert "7" not in control_ids(tokenizer)
        assert "    " not in control_ids(tokenizer)
    byte_level = all_tokenizers["byte_level"]
    assert byte_level.decode(byte_level.encode("a    b 7")) == "a    b 7"


@pytest.mark.parametrize("name", LOSSLESS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Z"]), max_size=30))
def test_a_stream_says_what_the_text_says(
    all_tokenizers: dict[str, Tokenizer], name: str, text: str
) -> None:
    tokenizer = all_tokenizers[name]
    ids = tokenizer.encode(text)
    decoder = tokenizer.decoder()
    parts = [decoder.push(token) for token in ids]
    assert decoder.flush() == ""
    streamed = "".join(parts)
    assert "\ufffd" not in streamed or "\ufffd" in text
    if name != "sentencepiece":  # which normalises
        assert streamed == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=30))
def test_sentencepiece_decodes_as_the_library_does(
    directories: dict[str, Path], all_tokenizers: dict[str, Tokenizer], text: str
) -> None:
    library = sentencepiece.SentencePieceProcessor(
        model_file=str(directories["sentencepiece"] / "tokenizer.model")
    )
    ids = all_tokenizers["sentencepiece"].encode(text)
    assert all_tokenizers["sentencepiece"].decode(ids) == library.decode(ids)


def test_a_character_waits_for_its_last_byte(all_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = all_tokenizers["byte_fallback"]
    ids = tokenizer.encode("\U0001f30a")[-4:]
    decoder = tokenizer.decoder()
    assert [decoder.push(token) for token in ids] == ["", "", "", "\U0001f30a"]
    decoder = tokenizer.decoder()
    assert [decoder.push(token) for token in ids[:3]] == ["", "", ""]
    assert decoder.flush() == "\ufffd"


def test_spaces_between_words_survive_a_stream(all_tokenizers: dict[str, Tokenizer]) -> None:
    for name in ("sentencepiece", "byte_fallback", "unigram"):
        tokenizer = all_tokenizers[name]
        decoder = tokenizer.decoder()
        ids = tokenizer.encode("An ocean is a large")[1:]
        assert "".join(decoder.push(token) for token in ids) == "An ocean is a large"


def test_a_marker_that_the_model_makes_is_shown(tokenizer: Tokenizer) -> None:
    controls = control_ids(tokenizer)
    assert tokenizer.decode([controls["<|user|>"]]) == "<|user|>"
    assert tokenizer.decode([*tokenizer.eos_ids]) == ""


def test_text_that_is_not_unicode_encodes(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("file \udcff"))


def test_without_a_template_the_plain_one_is_used(directories: dict[str, Path]) -> None:
    directory = directories["byte_level"]
    write_config(directory, chat_template=None)
    try:
        tokenizer = load_tokenizer(directory)
    finally:
        write_config(directory)
    assert tokenizer is not None
    assert not tokenizer.has_chat_template
    assert tokenizer.chat_stops == ("\nUser:",)
    ids = tokenizer.encode_chat(chat("Hi <|user|>"))
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.decode(ids) == "User: Hi <|user|>\nAssistant:"
    assert control_ids(tokenizer)["<|user|>"] not in ids


def test_no_tokenizer_files_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None


def test_a_template_file_wins_and_generation_config_ends_answers(tmp_path: Path) -> None:
    make_byte_level_json(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}<|im_start|>", encoding="utf-8")
    write(tmp_path, "generation_config.json", {"eos_token_id": [5, True, -1, "x"]})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    controls = control_ids(tokenizer)
    assert tokenizer.encode_chat(chat("a")) == [tokenizer.bos_id, controls["<|im_start|>"]]
    assert tokenizer.eos_ids == (5, controls["</s>"])


def test_settings_may_forbid_the_beginning(tmp_path: Path) -> None:
    make_byte_level_json(tmp_path)
    write_config(tmp_path, add_bos_token=False)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.bos_id not in tokenizer.encode("a")


def test_tokens_behind_a_sentencepiece_model(tmp_path: Path) -> None:
    make_sentencepiece(tmp_path)
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    extra = library.vocab_size()
    write(tmp_path, "added_tokens.json", {"<|extra|>": extra})
    write_config(tmp_path, chat_template="<|extra|>{{ messages[0].content }}")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.vocab_size == extra + 1
    assert tokenizer.decode([extra]) == "<|extra|>"
    ids = tokenizer.encode_chat(chat("a <|extra|>"))
    assert ids[0] == extra
    assert extra not in ids[1:]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.model", b""),
        ("tokenizer.model", b"not a model"),
        ("tokenizer.model", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("tokenizer.json", b""),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": 3}}'),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer_config.json", b"{"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    make_byte_level_json(tmp_path)
    if name == "tokenizer.model":
        (tmp_path / "tokenizer.json").unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        load_tokenizer(tmp_path)


def test_an_unknown_decoder_is_named(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="decoder none"):
        load_tokenizer(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(position=st.integers(0, 1 << 14), value=st.integers(0, 255))
def test_a_changed_byte_never_escapes_the_tree_of_errors(
    directories: dict[str, Path], tmp_path: Path, position: int, value: int
) -> None:
    content = bytearray((directories["sentencepiece"] / "tokenizer.model").read_bytes())
    content[position % len(content)] = value
    (tmp_path / "tokenizer.model").write_bytes(content)
    try:
        tokenizer = load_tokenizer(tmp_path)
    except ModelError:
        return
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("ocean")) is not None
