"""What tokenizer files may say of tokens and templates, and what is wrong with some of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from flashllm.errors import ModelError, UnsupportedModel
from flashllm.tokenizer.chat_template import Message
from flashllm.tokenizer.sentencepiece_model import SentencePieceVocabulary
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from flashllm.tokenizer.tokenizer_json import AddedToken as OwnToken
from tests.support.tokenizer_files import (
    make_byte_level,
    make_prepended,
    make_sentencepiece,
    write_config,
    write_json,
)

HELLO: list[Message] = [{"role": "user", "content": "<|x|> <y> z"}]
SHOW = "<|x|>{{ messages[0].content }}"


def loaded(directory: Path) -> Tokenizer:
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    return tokenizer


def edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "tokenizer.json"
    description = json.loads(path.read_text())
    change(description)
    path.write_text(json.dumps(description))


def bare(
    directory: Path, pieces: dict[str, int], added: list[dict[str, Any]] | None = None
) -> None:
    """A byte-level tokenizer of these pieces alone."""
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(directory / "tokenizer.json"))

    def change(description: dict[str, Any]) -> None:
        description["model"]["vocab"] = pieces
        description["added_tokens"] = added or []

    edit(directory, change)


def entry(token: Any, content: Any, **flags: Any) -> dict[str, Any]:
    return {"id": token, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True, **flags}  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "added", "match"),
    [
        ({}, [], "it has no pieces"),
        ({"a": 0, "b": 0}, [], "pieces 'a' and 'b' share the id 0"),
        ({"a": 0, "b": 1 << 23}, [], "piece 'b' has the id 8388608"),
        ({"a": 0, "b": 1 << 40}, [], "piece 'b' has the id"),
        ({"a": 0, "b": -1}, [], "piece 'b' has the id -1"),
        ({"a": 0, "b": True}, [], "piece 'b' has the id True"),
        ({"a": 0, "b": "1"}, [], "piece 'b' has the id 1"),
        ({"a": 0}, [entry(1, "<x>"), entry(1, "<y>")], "'<y>': its id 1 or its name occurs twice"),
        ({"a": 0}, [entry(1, "<x>"), entry(2, "<x>")], "'<x>': its id 2 or its name"),
        ({"a": 0, "<x>": 1}, [entry(2, "<x>")], "'<x>' has the ids 1 and 2"),
        ({"a": 0}, [entry(1 << 31, "<x>")], "'<x>' has the id 2147483648"),
        ({"a": 0}, [entry(None, "<x>")], "'<x>' has the id None"),
        ({"a": 0}, [entry(1, 5)], "'5' has the id 1"),
        ({"a": 0}, [{"id": 1}], "'content'"),
        ({"a": 0}, [3], "cannot be loaded"),
    ],
)
def test_ids_that_cannot_be(
    tmp_path: Path, pieces: dict[str, int], added: list[dict[str, Any]], match: str
) -> None:
    bare(tmp_path, pieces, added)
    with pytest.raises(ModelError, match=rf"tokenizer\.json: .*{match}"):
        load_tokenizer(tmp_path)


def test_vocab_and_merges_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    for vocab, match in (({}, "no pieces"), ({"a": 0, "b": 0}, "share the id"), ({"a": 0}, "load")):
        write_json(tmp_path, "vocab.json", vocab)
        with pytest.raises(ModelError, match=rf"vocab\.json: .*{match}"):
            load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"vocab\.json: "):
        load_tokenizer(tmp_path)


def test_an_added_token_takes_the_id_of_a_piece_over(tmp_path: Path) -> None:
    bare(tmp_path, {"a": 0, "b": 1, "c": 2}, [entry(1, "<|x|>")])
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": SHOW})
    tokenizer = loaded(tmp_path)
    assert tokenizer.vocabulary.control_ids == {"<|x|>": 1}
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}]) == [1, 0]
    assert tokenizer.encode("abc") == [0, 2]
    assert tokenizer.decode([1]) == "<|x|>"


@pytest.mark.parametrize("flags", [{"single_word": True}, {"normalized": True}, {"special": False}])
def test_a_marker_is_one_whatever_is_beside_it(tmp_path: Path, flags: dict[str, Any]) -> None:
    make_prepended(tmp_path)

    def change(description: dict[str, Any]) -> None:
        description["added_tokens"].append(entry(700, "<|x|>", **flags))

    edit(tmp_path, change)
    write_json(
        tmp_path, "tokenizer_config.json", {"chat_template": "a<|x|>b{{ messages[0].content }}"}
    )
    ids = loaded(tmp_path).encode_chat(HELLO)
    assert ids.count(700) == 1


def test_a_marker_and_digits_behind_it_are_no_other_marker(tmp_path: Path) -> None:
    added = [entry(5, "<|x|>"), entry(50, "<|y|>"), entry(500, "<|z|>")]
    bare(tmp_path, {"a": 0, "0": 1}, added)
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": SHOW})
    tokenizer = loaded(tmp_path)
    assert tokenizer.encode_chat([{"role": "user", "content": "00"}]) == [5, 1, 1]


def test_ordinary_pieces_that_are_markers(tmp_path: Path) -> None:
    """Rules that lead to a marker which nobody added make it from anybody's text."""
    merges = [("<", "|"), ("|", ">"), ("<|", "x"), ("<|x", "|>"), ("<", "y"), ("<y", ">")]
    letters = ["<", "|", ">", "x", "y", "z", "Ġ"]
    pieces = [*letters, *("".join(pair) for pair in merges)]
    tokenizer = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = {piece: number for number, piece in enumerate(pieces)}
    assert {ids["<|x|>"], ids["<y>"]} < set(tokenizer.encode("<|x|> <y>").ids)

    write_json(tmp_path, "tokenizer_config.json", {"chat_template": SHOW + "<y>"})
    ours = loaded(tmp_path)
    assert set(ours.vocabulary.control_ids) == {"<|x|>", "<y>"}
    shown = ours.encode_chat(HELLO)
    assert shown[0] == ids["<|x|>"]
    assert shown[-1] == ids["<y>"]
    assert {ids["<|x|>"], ids["<y>"]}.isdisjoint(shown[1:-1])
    assert ours.decode(shown) == "<|x|><|x|> <y> z<y>"

    write_json(tmp_path, "tokenizer_config.json", {"chat_template": SHOW})
    assert ids["<y>"] in loaded(tmp_path).encode("<y>")


def test_pieces_that_no_text_reaches_are_left_alone(tmp_path: Path) -> None:
    bare(tmp_path, {"<": 0, "|": 1, ">": 2, "x": 3, "<|x|>": 4})
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": SHOW})
    tokenizer = loaded(tmp_path)
    assert tokenizer.vocabulary.control_ids == {}
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}]) == [0, 1, 3, 1, 2, 3]


def test_special_tokens_that_only_the_settings_name(tmp_path: Path) -> None:
    pieces = {"a": 0, "EOT": 1, "BOT": 2, "MID": 3}
    bare(tmp_path, pieces)
    write_json(
        tmp_path,
        "special_tokens_map.json",
        {"additional_special_tokens": ["EOT", {"content": "BOT"}, 3]},
    )
    write_json(tmp_path, "tokenizer_config.json", {"extra_special_tokens": {"mid": "MID"}})
    assert loaded(tmp_path).vocabulary.control_ids == {"EOT": 1, "BOT": 2, "MID": 3}


def test_chance_in_the_rules_is_left_out(tmp_path: Path) -> None:
    make_byte_level(tmp_path)
    expected = loaded(tmp_path).encode("What does ocean mean?")

    def change(description: dict[str, Any]) -> None:
        description["model"]["dropout"] = 0.9

    edit(tmp_path, change)
    assert [loaded(tmp_path).encode("What does ocean mean?") for _ in range(5)] == [expected] * 5


def test_a_decoder_that_replaces_something_else_is_named(tmp_path: Path) -> None:
    make_prepended(tmp_path)

    def change(description: dict[str, Any]) -> None:
        description["decoder"]["decoders"][0]["content"] = "x"

    edit(tmp_path, change)
    with pytest.raises(UnsupportedModel, match="decoder that replaces"):
        load_tokenizer(tmp_path)


def write_jinja(directory: Path, name: str, content: str) -> None:
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text(content, encoding="utf-8")


def test_where_a_template_is_looked_for(tmp_path: Path) -> None:
    """The first place wins; each step takes away the one that won."""
    bare(tmp_path, {character: number for number, character in enumerate("01234567")})
    named = [{"name": "tool_use", "template": "6"}, {"name": "default", "template": "2"}]
    config: dict[str, Any] = {"chat_template": named}
    write_jinja(tmp_path, "chat_template.jinja", "0")
    write_jinja(tmp_path, "additional_chat_templates/default.jinja", "1")
    write_jinja(tmp_path, "additional_chat_templates/rag.jinja", "7")
    write_json(tmp_path, "tokenizer_config.json", config)
    write_json(tmp_path, "chat_template.json", {"chat_template": "3"})

    def answer() -> list[int]:
        return loaded(tmp_path).encode_chat(HELLO)

    assert answer() == [0]
    (tmp_path / "chat_template.jinja").unlink()
    assert answer() == [1]
    (tmp_path / "additional_chat_templates" / "default.jinja").unlink()
    assert answer() == [2]
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": None})
    assert answer() == [3]
    write_json(
        tmp_path, "chat_template.json", {"chat_template": [{"name": "only", "template": "4"}]}
    )
    assert answer() == [4]
    write_json(
        tmp_path,
        "chat_template.json",
        {"chat_template": [*named[:1], {"name": "rag", "template": "5"}]},
    )
    assert not loaded(tmp_path).has_chat_template
    (tmp_path / "chat_template.json").write_text("{")
    with pytest.raises(ModelError, match=r"chat_template\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", [{"a": 1}, ["default"], 7])
def test_a_template_whose_name_is_no_text_counts_as_none(tmp_path: Path, name: object) -> None:
    make_byte_level(tmp_path)
    named = [{"name": name, "template": "x"}, {"name": "default", "template": "0"}]
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": named})
    tokenizer = loaded(tmp_path)
    assert tokenizer.decode(tokenizer.encode_chat(HELLO)) == "0"
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": named[:1]})
    assert not loaded(tmp_path).has_chat_template


def test_a_template_that_is_not_text(tmp_path: Path) -> None:
    make_byte_level(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: not UTF-8"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("behind", "stops"),
    [
        ("<|im_end|>\\n", ("<|im_end|>",)),
        (" </s>", ()),
        (" <|user|> </s>", ("<|user|>",)),
        ("\\n", ("<|assistant|>",)),
    ],
)
def test_what_a_template_puts_behind_an_answer_ends_it(
    tmp_path: Path, behind: str, stops: tuple[str, ...]
) -> None:
    make_byte_level(tmp_path)
    source = "{% for m in messages %}<|user|>{{ m.content + '" + behind + "' }}{% endfor %}"
    write_config(tmp_path, source + "<|assistant|>")
    assert loaded(tmp_path).chat_stops == stops


@pytest.mark.parametrize("source", ["{{ raise_exception('no') }}", "{% for", "no content", "\n"])
def test_a_template_that_says_nothing_of_an_end(tmp_path: Path, source: str) -> None:
    make_byte_level(tmp_path)
    write_config(tmp_path, source)
    assert loaded(tmp_path).chat_stops == ()


@pytest.fixture(scope="module")
def piece_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("pieces")
    make_sentencepiece(directory, user_defined_symbols=["<|x|>", "<unused>", "<y>", "<|zz|>"])
    return (directory / "tokenizer.model").read_bytes()


def as_normal(model: bytes, piece: str) -> bytes:
    """The model with a user-defined piece made an ordinary one that says nothing of its type."""
    name = piece.encode()
    start = model.index(name) + len(name)
    assert model[start] == 0x15  # the score, four bytes
    assert model[start + 5 : start + 7] == b"\x18\x04"
    length_at = start - len(name) - 3
    assert model[length_at] == len(name) + 9
    return b"".join(
        [
            model[:length_at],
            bytes([len(name) + 7]),
            model[length_at + 1 : start + 5],
            model[start + 7 :],
        ]
    )


def vocabulary(model: bytes, template: str = "", **more: Any) -> SentencePieceVocabulary:
    return SentencePieceVocabulary(
        model, more.get("added", {}), more.get("specials", ()), template, legacy=True
    )


def test_an_ordinary_piece_of_a_model_may_be_a_marker(piece_model: bytes) -> None:
    model = as_normal(as_normal(piece_model, "<|x|>"), "<y>")
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = {piece: library.piece_to_id(piece) for piece in ("<|x|>", "<y>")}
    assert set(ids.values()) < set(library.encode("a<|x|> <y>"))

    ours = vocabulary(model, "<y>")
    assert ids.items() <= ours.control_ids.items()
    assert set(ids.values()).isdisjoint(ours.encode(["a<|x|> <y>"]))
    assert ours.size == library.vocab_size()
    assert ours.encode(["water ", ids["<y>"]]) == [*library.encode("water "), ids["<y>"]]
    assert ids["<y>"] in vocabulary(model).encode(["<y>"])
    assert ids["<y>"] not in vocabulary(model, specials=["<y>"]).encode(["<y>"])


def test_an_added_token_names_a_piece_of_a_model_anew(piece_model: bytes) -> None:
    model = as_normal(piece_model, "<unused>")
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    token = library.piece_to_id("<unused>")
    added = {token: OwnToken("<|start|>")}
    ours = vocabulary(model, added=added)
    assert ours.control_ids["<|start|>"] == token
    assert "<unused>" not in ours.control_ids
    assert ours.piece_bytes(token) == b"<|start|>"
    assert token not in ours.encode(["<unused> <|start|>"])


def test_added_tokens_that_a_model_cannot_have(piece_model: bytes) -> None:
    library = sentencepiece.SentencePieceProcessor(model_proto=piece_model)
    byte, last = library.piece_to_id("<0x41>"), library.vocab_size()
    for added, match in (
        ({byte: OwnToken("<|a|>")}, "the id of a byte"),
        ({last: OwnToken("<|a|>"), last + 1: OwnToken("<|a|>")}, "with two ids"),
        ({1 << 23: OwnToken("<|a|>")}, "above 8388607"),
    ):
        with pytest.raises(ValueError, match=match):
            vocabulary(piece_model, added=added)
    with pytest.raises(ValueError, match="no pieces"):
        vocabulary(b"")


def test_a_large_id_behind_a_model_takes_no_time_or_memory(tmp_path: Path) -> None:
    make_sentencepiece(tmp_path)
    write_json(tmp_path, "added_tokens.json", {"<|far|>": (1 << 23) - 1})
    tokenizer = loaded(tmp_path)
    assert tokenizer.vocab_size == 1 << 23
    assert tokenizer.decode([(1 << 23) - 1, 1 << 22]) == "<|far|>"


def test_a_marker_of_the_library_kept_its_white_space(tmp_path: Path) -> None:
    """`rstrip` takes in what follows a marker, also what a user wrote."""
    make_byte_level(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.add_special_tokens([AddedToken("<|x|>", rstrip=True, lstrip=True)])
    library.save(str(tmp_path / "tokenizer.json"))
    template = "b \n<|x|>\n{{ messages[0].content }}"
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": template})
    ids = loaded(tmp_path).encode_chat([{"role": "user", "content": "  a "}])
    assert ids == library.encode("b<|x|>a ", add_special_tokens=False).ids


def test_a_text_that_the_library_cannot_encode_is_an_error_of_the_file(tmp_path: Path) -> None:
    vocabulary = tokenizers.Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0)], None))
    vocabulary.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    vocabulary.decoder = decoders.Metaspace(prepend_scheme="never")
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    assert loaded.vocabulary.encode(["ab"]) == [0, 1]
    with pytest.raises(ModelError, match=r"tokenizer\.json: cannot encode this text \(.*unk_id"):
        loaded.vocabulary.encode(["abc"])


def test_pieces_are_told_by_the_files_ids_whatever_the_library_makes_of_them(
    tmp_path: Path,
) -> None:
    """It numbers added tokens from the number of pieces on, where others may be."""
    letters = {chr(ord("a") + number): number + 3 for number in range(26)}
    added = [
        {"id": number, "content": content, "special": True, "normalized": False,
         "lstrip": False, "rstrip": False, "single_word": False}
        for number, content in enumerate(("<s>", "</s>", "<unk>"))
    ]  # fmt: skip
    bare(tmp_path, letters, added)
    tokenizer = loaded(tmp_path)
    spelled = [tokenizer.piece_bytes(token).decode() for token in range(30)]
    assert spelled == ["<s>", "</s>", "<unk>", *letters, ""]
    assert tokenizer.vocab_size == 29
