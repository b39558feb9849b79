"""The ids of whole conversations and texts are those that transformers gives for the same files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers

from flashllm.tokenizer.chat_template import Message
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.chat_templates import EDGES, MARKERS, STRIPPING_MARKERS, TEMPLATES
from tests.support.tokenizer_files import MAKERS, write_config, write_json
from tests.tokenizer.test_template import QWEN_3, REASONED

JSON_KINDS = ("byte-level", "byte-level-nfkc", "prepended", "prepended-first", "unigram")
TALK = (
    "Be brief.\nAnswer in  one line.", " What does ocean mean? ", "A body of\n\nwater: 7    7.",
    "\n\nx == y; [x]\t", "  naïve café 你好，世界。", "a", "用户", "Grüße", "ﬁne \u3000 x",
)  # fmt: skip
TEXTS = (
    "",
    " ",
    "a",
    " a",
    "a ",
    "\n",
    "  two  spaces",
    "naïve 你好 \U0001f30a",
    "x\n\ny\t7 77",
    "ﬁ",
)


def directory_of(
    root: Path, kind: str, template: str | None, **config: Any
) -> tuple[Path, Tokenizer]:
    directory = root / kind
    if not directory.exists():
        directory.mkdir()
        MAKERS[kind](directory)
    write_config(directory, template, **config)
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    return directory, tokenizer


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


def reference_of(directory: Path, template: str | None) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        chat_template=template,
    )


def conversation(has_system: bool) -> list[Message]:
    texts = TALK if has_system else TALK[1:]
    roles = ["system"] if has_system else []
    roles += [("user", "assistant")[i % 2] for i in range(len(texts) - len(roles))]
    return [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]


@pytest.mark.parametrize("name", [name for name, t in TEMPLATES.items() if t.source])
@pytest.mark.parametrize("kind", JSON_KINDS)
def test_conversations(root: Path, kind: str, name: str) -> None:
    template = TEMPLATES[name]
    directory, tokenizer = directory_of(root, kind, template.source)
    reference = reference_of(directory, template.source)
    messages = conversation(template.has_system)
    if name == "falcon":  # it changes what is said; contents are not shown to templates here
        messages = [{**m, "content": m["content"].replace("\n\n", "\n")} for m in messages]
    expected = reference.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.encode_chat(messages) == expected
    text = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert reference(text, add_special_tokens=False)["input_ids"] == expected


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_twenty_conversations_with_reasoning(root: Path, kind: str) -> None:
    """Ids are those of `apply_chat_template`, which drops the reasoning of earlier answers."""
    directory, tokenizer = directory_of(root, kind, QWEN_3)
    reference = reference_of(directory, QWEN_3)
    rng = random.Random(25)
    dropped = 0
    for _ in range(20):
        messages: list[Message] = [{"role": "system", "content": "Help."}] * rng.randint(0, 1)
        for _ in range(rng.randint(1, 4)):
            messages.append({"role": "user", "content": rng.choice(["Why?", "Is 2 < 3?", "Go on"])})
            messages.append({"role": "assistant", "content": rng.choice([*REASONED, "Yes."])})
        messages.append({"role": "user", "content": "And a lake?"})
        expected = reference.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert tokenizer.encode_chat(messages) == expected
        text = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        dropped += "</think>" not in text and any("</think>" in m["content"] for m in messages)
    assert dropped >= 10


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_texts(root: Path, kind: str) -> None:
    directory, tokenizer = directory_of(root, kind, None, add_bos_token=False)
    reference = reference_of(directory, None)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference(text, add_special_tokens=False)["input_ids"], text
        if kind != "unigram" and not text.startswith(" "):
            assert tokenizer.decode(ids) == reference.decode(
                ids, clean_up_tokenization_spaces=False
            )


@pytest.mark.parametrize("name", ["chatml", "phi-3", "llama-2"])
def test_vocabulary_and_merges(root: Path, name: str) -> None:
    template = TEMPLATES[name].source
    directory, tokenizer = directory_of(root, "vocab-and-merges", template)
    reference = transformers.GPT2Tokenizer(
        vocab=json.loads((directory / "vocab.json").read_text()),
        merges=[
            tuple(line.split(" "))
            for line in (directory / "merges.txt").read_text().splitlines()[1:]
        ],
        bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
    )  # fmt: skip
    added = json.loads((directory / "added_tokens.json").read_text())
    for marker in added:
        reference.add_tokens([transformers.AddedToken(marker, special=True, normalized=False)])
    moved = {reference.convert_tokens_to_ids(marker): token for marker, token in added.items()}
    messages = conversation(True)
    expected = reference.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.encode_chat(messages) == [moved.get(token, token) for token in expected]


def sentencepiece_reference(
    directory: Path, parts: list[str], added: dict[str, int], legacy: bool
) -> list[int]:
    """Stretches of text between markers, encoded by the library itself as LlamaTokenizer did.

    Without `legacy`, text behind a marker is encoded behind `<unk>`, whose pieces are taken off:
    so it does not begin with a space.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    lead = processor.encode("<unk>", out_type=str)[1:]
    ids: list[int] = []
    for number, part in enumerate(parts):
        if part in added:
            ids.append(added[part])
        elif legacy or number == 0:
            ids += processor.encode(part)
        else:
            pieces = processor.encode("<unk>" + part, out_type=str)
            assert pieces[1 : 1 + len(lead)] == lead
            ids += [processor.piece_to_id(piece) for piece in pieces[1 + len(lead) :]]
    return ids


@pytest.mark.parametrize("legacy", [True, False, None])
def test_sentencepiece_and_its_space_in_front(root: Path, legacy: bool | None) -> None:
    template = "{{ bos_token }}user: {{ messages[0].content }}<|im_end|>{{ messages[1].content }}"
    config = {} if legacy is None else {"legacy": legacy}
    directory, tokenizer = directory_of(root, "sentencepiece-bpe", template, **config)
    controls = tokenizer.vocabulary.control_ids
    messages: list[Message] = [
        {"role": "user", "content": "An ocean"},
        {"role": "assistant", "content": "water is"},
    ]
    parts = ["<s>", "user: An ocean", "<|im_end|>", "water is"]
    expected = sentencepiece_reference(directory, parts, controls, legacy is not False)
    assert tokenizer.encode_chat(messages) == expected
    other = sentencepiece_reference(directory, parts, controls, legacy is False)
    assert other != expected
    alone = sentencepiece_reference(directory, ["An ocean"], controls, True)
    assert tokenizer.encode("An ocean") == [controls["<s>"], *alone]


def test_markers_that_take_in_white_space_beside_a_sentencepiece_model(root: Path) -> None:
    template = TEMPLATES["phi-3"].source
    directory, _ = directory_of(root, "sentencepiece-bpe", template)
    numbers = json.loads((directory / "added_tokens.json").read_text())
    decoder = {
        str(token): {
            "content": marker,
            "rstrip": marker in STRIPPING_MARKERS,
            "lstrip": marker == "<mask>",
            "special": True,
        }
        for marker, token in numbers.items()
    }
    _, tokenizer = directory_of(
        root, "sentencepiece-bpe", template, added_tokens_decoder=decoder, legacy=False
    )
    messages: list[Message] = [{"role": "user", "content": " \n ocean  "}]
    parts = ["<|user|>", "ocean  ", "<|end|>", "<|assistant|>"]
    expected = sentencepiece_reference(directory, parts, numbers, False)
    assert tokenizer.encode_chat(messages) == expected

    _, tokenizer = directory_of(
        root,
        "sentencepiece-bpe",
        "{{ messages[0].content }}  <mask> b",
        added_tokens_decoder=decoder,
        legacy=False,
    )
    parts = ["ocean", "<mask>", " b"]
    expected = sentencepiece_reference(directory, parts, numbers, False)
    assert tokenizer.encode_chat([{"role": "user", "content": "ocean"}]) == expected


def test_ids_with_a_gap_are_those_of_the_files(root: Path, tmp_path: Path) -> None:
    MAKERS["vocab-and-merges"](tmp_path)
    added = json.loads((tmp_path / "added_tokens.json").read_text())
    far = {marker: token + 100 for marker, token in added.items()}
    write_json(tmp_path, "added_tokens.json", far)
    write_config(tmp_path, TEMPLATES["chatml"].source)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    ids = tokenizer.encode_chat(conversation(True))
    assert ids[0] == far["<|im_start|>"] == tokenizer.vocabulary.control_ids["<|im_start|>"]
    assert tokenizer.vocab_size == max(far.values()) + 1
    assert tokenizer.decode(ids).startswith("<|im_start|>system\nBe brief.")
    assert set(far.values()) & set(ids) == {far["<|im_start|>"], far["<|im_end|>"]}


def test_the_markers_are_all_there(root: Path) -> None:
    _, tokenizer = directory_of(root, "byte-level", None)
    assert set(MARKERS) == set(tokenizer.vocabulary.control_ids)
    assert set(EDGES) < set(MARKERS)
