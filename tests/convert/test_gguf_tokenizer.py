"""Tokenizers that came in a GGUF give the ids of those that they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
import tokenizers
from flashllm.convert.families.gguf_vocabularies import SPLITS
from flashllm.convert.output.gguf_tokenizer import made_tokenizer
from flashllm.convert.source.gguf_header import read_header
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from flashllm.errors import ModelError, NotACheckpoint, UnsupportedModel
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.gguf_models import add
from tests.support.tokenizer_files import SENTENCES

MARKERS = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
TEXTS = [
    "",
    "An ocean is a large body of water.",
    "don't WON'T I'll, x == y;  two  spaces\n\n\tand 1234567 digits",
    "Grüße aus Köln, nai\u0308ve, 你好，世界 🙂 e\u0301",
    "   leading and trailing   ",
    "<|im_end|> typed by a user, </s> too",
]


def trained(pre: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits text as some vocabulary does, by the library's parts."""
    split = SPLITS[pre]
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=split.ignore_merges))
    steps: list[Any] = [pre_tokenizers.Digits(True)] if split.single_digits else []
    if split.pattern:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split.pattern))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens([AddedToken(m, normalized=False) for m in MARKERS])
    tokenizer.add_tokens([AddedToken("    ", normalized=False)])
    return tokenizer


def write(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF with nothing but a vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add(writer, key if key.startswith("tokenizer.") else f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level(tokenizer: tokenizers.Tokenizer, pre: str, **more: Any) -> dict[str, Any]:
    """The metadata of a tokenizer, as llama.cpp's converter writes them."""
    description = json.loads(tokenizer.to_str())
    added = {entry["id"]: entry for entry in description["added_tokens"]}
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    types = [
        (3 if added[i]["special"] else 4) if i in added else 1 for i in range(len(tokens))
    ]  # fmt: skip
    merges = [" ".join(pair) for pair in description["model"]["merges"]]
    return {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges,
        "eos_token_id": tokens.index("<|im_end|>"), "tokenizer.chat_template": TEMPLATE, **more,
    }  # fmt: skip


def opened(directory: Path, source: Path, present: tuple[str, ...] = ()) -> Tokenizer:
    directory.mkdir(exist_ok=True)
    for name, content in made_tokenizer(source, read_header(source).metadata, present).items():
        (directory / name).write_bytes(content)
    found = load_tokenizer(directory)
    assert found is not None
    return found


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_byte_level_vocabularies(tmp_path: Path, pre: str) -> None:
    original = trained(pre)
    source = write(tmp_path / "v.gguf", byte_level(original, pre, add_bos_token=False))
    found = opened(tmp_path / "made", source)
    original.save(str(tmp_path / "tokenizer.json"))
    direct = load_tokenizer(tmp_path)
    assert direct is not None
    for text in TEXTS:
        assert found.encode(text) == direct.encode(text)
        assert found.decode(found.encode(text)) == direct.decode(direct.encode(text))
        if "<|" not in text:
            assert found.encode(text) == original.encode(text, add_special_tokens=False).ids
    end = original.token_to_id("<|im_end|>")
    assert found.eos_ids == (end,)
    talk = [{"role": "user", "content": "What is an ocean?"}]
    assert found.has_chat_template
    assert found.encode_chat(talk).count(end) == 1


def test_patterns_are_those_that_others_have() -> None:
    assert SPLITS["qwen2"].pattern == PRETOKENIZE_REGEX
    llama3 = TikTokenConverter.__init__.__defaults__
    assert llama3 is not None
    assert SPLITS["llama-bpe"].pattern in llama3


def test_what_texts_begin_with(tmp_path: Path) -> None:
    original = trained("llama-bpe")
    start = original.token_to_id("<|im_start|>")
    for pre, said, begins in (
        ("llama-bpe", None, True), ("qwen2", None, False), ("qwen2", True, True),
        ("llama-bpe", False, False),
    ):  # fmt: skip
        own = {} if said is None else {"add_bos_token": said}
        metadata = byte_level(original, pre, bos_token_id=start, **own)
        made = made_tokenizer(tmp_path, read_header(write(tmp_path / "v", metadata)).metadata, ())
        config = json.loads(made["tokenizer_config.json"])
        assert config["add_bos_token"] is begins
        assert config["bos_token"] == "<|im_start|>"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentencepiece model with scores, bytes and a marker of its own."""
    root = tmp_path_factory.mktemp("pieces")
    (root / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(root / "text"), model_prefix=str(root / "tokenizer"), vocab_size=420,
        model_type="bpe", byte_fallback=True, user_defined_symbols=["<|im_end|>"],
        normalization_rule_name="identity", remove_extra_whitespaces=False, pad_id=-1,
        split_digits=True, minloglevel=2,
    )  # fmt: skip
    return root


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_vocabularies(tmp_path: Path, pieces: Path, prefix: bool) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(pieces / "tokenizer.model"))
    count = processor.get_piece_size()
    metadata = {
        "model": "llama",
        "pre": "default",
        "tokens": [processor.id_to_piece(i) for i in range(count)],
        "scores": [processor.get_score(i) for i in range(count)],
        "token_type": [_type(processor, i) for i in range(count)],
        "bos_token_id": processor.bos_id(),
        "eos_token_id": processor.eos_id(),
        "unknown_token_id": processor.unk_id(),
        "add_space_prefix": prefix,
    }
    found = opened(tmp_path / "made", write(tmp_path / "v.gguf", metadata))
    reference = load_tokenizer(pieces)
    assert reference is not None
    assert (found.bos_id, found.eos_ids) == (reference.bos_id, reference.eos_ids)
    for text in TEXTS:
        if prefix:
            assert found.encode(text) == reference.encode(text)
        elif not text.startswith("<"):
            # What is put in front of each text is all that differs.
            assert found.encode(f"\n{text}")[1:] == reference.encode(f"\n{text}")[2:]
        assert found.decode(found.encode(text)) == text


def _type(processor: sentencepiece.SentencePieceProcessor, token: int) -> int:
    flags = (processor.is_unknown, processor.is_control, processor.is_unused, processor.is_byte)
    kinds = [kind for kind, flag in zip((2, 3, 5, 6), flags, strict=True) if flag(token)]
    user_defined = processor.id_to_piece(token) == "<|im_end|>"
    return kinds[0] if kinds else 4 if user_defined else 1


def test_what_lies_beside_the_file_wins(tmp_path: Path) -> None:
    source = write(tmp_path / "v.gguf", byte_level(trained("qwen2"), "qwen2"))
    metadata = read_header(source).metadata
    assert set(made_tokenizer(source, metadata, ())) == {"tokenizer.json", "tokenizer_config.json"}
    assert set(made_tokenizer(source, metadata, ("tokenizer.json",))) == {"tokenizer_config.json"}
    assert made_tokenizer(source, metadata, ("tokenizer.json", "tokenizer_config.json")) == {}
    odd = metadata | {"tokenizer.ggml.pre": "new-and-unknown"}
    assert set(made_tokenizer(source, odd, ("tokenizer.json",))) == {"tokenizer_config.json"}
    assert made_tokenizer(source, {}, ()) == {}
    assert made_tokenizer(source, {"tokenizer.ggml.model": "no_vocab"}, ()) == {}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pre": "new"}, UnsupportedModel, "pre is 'new'.*known for llama-bpe.*put the tokenizer"),
        ({"pre": None}, UnsupportedModel, "pre is missing"),
        ({"model": "bert"}, UnsupportedModel, "model is 'bert'.*beside the file"),
        ({"tokens": None}, NotACheckpoint, "tokens is no list"),
        ({"tokens": [1, 2]}, NotACheckpoint, "tokens is no list of texts"),
        (
            {"tokens": ["a", "a"], "token_type": None, "eos_token_id": None},
            NotACheckpoint,
            "a token twice",
        ),
        ({"token_type": [1]}, NotACheckpoint, "token_type is no list of"),
        ({"merges": ["zzz y"]}, NotACheckpoint, "'zzz y', whose parts are no tokens"),
        ({"merges": 3}, NotACheckpoint, "merges is no list"),
        ({"eos_token_id": 1 << 30}, NotACheckpoint, "eos_token_id is 1073741824"),
        ({"model": "llama"}, NotACheckpoint, "scores is no list of"),
    ],
)
def test_damaged_and_unknown_vocabularies(
    tmp_path: Path, change: dict[str, Any], error: type[ModelError], message: str
) -> None:
    metadata = byte_level(trained("qwen2"), "qwen2") | change
    kept = {key: value for key, value in metadata.items() if value is not None}
    source = write(tmp_path / "v.gguf", kept)
    with pytest.raises(error, match=message) as raised:
        made_tokenizer(source, read_header(source).metadata, ())
    assert str(source) in str(raised.value)
