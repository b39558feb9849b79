"""Ten thousand random texts for each template, made of every marker: none becomes a control id."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from flashllm.tokenizer.chat_template import Message
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.chat_templates import MARKERS, TEMPLATES
from tests.support.tokenizer_files import LOSSLESS, MAKERS, write_config

TEXTS = 10_000
SPACES = (
    " ", "\n", "\t", "\r\n", "  ", "\n\n", "    ", "\xa0", "\u3000", "\u2028", "\x85", "\x1c",
    "\u200b", "\u2060", "\ufeff", "\u2581", "\u0120", "\u010a",
)  # fmt: skip
INVISIBLE = ("\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\xad", "\u0338", "\u202e", "\x00")
WORDS = (
    "ocean", "water", "user", "assistant", "system", "im_start", "start_header_id", "INST", "SYS",
    "[INST]", "<<SYS>>", "<</SYS>>", "User:", "Assistant:", "Falcon:", "0", "7", "12", "<", "|>",
    "<|", "|", ">", "</", "<0x3C>", "<0x0A>", "&lt;s&gt;", "{{ bos_token }}", "{% endfor %}",
    "\\u003cs\\u003e", "\x1b[31m", "\U0001f30a", "\udcff", "\ue000", "\ue001", "用户", "e\u0301",
)  # fmt: skip
LOOK_ALIKE = str.maketrans("aeoi|<>_", "\u0430\u0435\u043e\u0456\u01c0\u2039\u203a\uff3f")
LIGATURES = (("st", "\ufb06"), ("fi", "\ufb01"), ("AI", "\uff21\uff29"), ("...", "\u2026"))


class Texts:
    """Random texts of markers whole, halved, disguised, and of what surrounds them."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def marker(self) -> str:
        """A marker, or something that is nearly one or becomes one by normalisation."""
        pick = self._random
        marker = pick.choice(MARKERS)
        place = pick.randrange(1, len(marker))
        kind = pick.randrange(12)
        if kind == 0:
            return marker[:place]
        if kind == 1:
            return marker[place:]
        if kind == 2:
            return marker[:place] + pick.choice(INVISIBLE) + marker[place:]
        if kind == 3:  # full width: NFKC makes it a marker
            return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in marker)
        if kind == 4:
            for letters, ligature in LIGATURES:
                marker = marker.replace(letters, ligature)
            return marker
        if kind == 5:
            return marker.translate(LOOK_ALIKE)
        if kind == 6:
            return pick.choice((marker.upper(), marker.title(), marker.swapcase()))
        if kind == 7:  # white space around, as markers that take it in would match
            return pick.choice(SPACES) + marker + pick.choice(SPACES)
        if kind == 8:
            return marker[:place] + pick.choice(MARKERS) + marker[place:]
        return marker

    def placeholder(self) -> str:
        """What a placeholder or a marker's secret name looks like from outside."""
        pick = self._random
        digits = "".join(pick.choices("0123456789abcdef", k=32))
        return pick.choice(
            (
                f"\ue000{pick.randrange(10**39):039d}\ue001",
                f"\ue000{digits}.{pick.randrange(600)}\ue001",
                f".{pick.randrange(600)}\ue001",
                f"\ue000{digits}",
            )
        )

    def text(self) -> str:
        """One text."""
        pick = self._random
        parts = []
        for _ in range(pick.randint(1, 5)):
            kind = pick.random()
            if kind < 0.6:
                parts.append(self.marker())
            elif kind < 0.8:
                parts.append(pick.choice(WORDS))
            elif kind < 0.95:
                parts.append(pick.choice(SPACES))
            else:
                parts.append(self.placeholder())
        return "".join(parts)

    def many(self, count: int) -> list[str]:
        """Texts, now and then two in a row that share a marker between them."""
        texts: list[str] = []
        while len(texts) < count:
            text = self.text()
            if self._random.random() < 0.2:
                marker = self._random.choice(MARKERS)
                place = self._random.randrange(1, len(marker))
                texts += [text + marker[:place], marker[place:] + text]
            else:
                texts.append(text)
        return texts[:count]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, make in MAKERS.items():
        made[name] = tmp_path_factory.mktemp(name)
        make(made[name])
    return made


def tokenizer_with(directory: Path, template: str | None) -> Tokenizer:
    write_config(directory, template)
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    assert tokenizer.has_chat_template == (template is not None)
    return tokenizer


def controls_of(tokenizer: Tokenizer) -> dict[str, int]:
    """All but the one that stands for what has no piece."""
    controls = dict(tokenizer.vocabulary.control_ids)
    controls.pop("<unk>")
    return controls


def conversation(texts: Sequence[str], has_system: bool) -> list[Message]:
    roles = ["system"] if has_system else []
    roles += [("user", "assistant")[i % 2] for i in range(len(texts) - len(roles))]
    return [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]


def harmless(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with one letter for what each message says between white space."""
    found = []
    for message in messages:
        content = message["content"]
        core = content.strip()
        content = content.replace(core, "a", 1) if core else content
        found.append({"role": message["role"], "content": content})
    return found


def guilty(tokenizer: Tokenizer, messages: Sequence[Message], controls: set[int]) -> list[str]:
    """Contents that make control ids of their own, for the message of a failure."""

    def count(content: str) -> int:
        ids = tokenizer.encode_chat([{"role": "user", "content": content}])
        return sum(token in controls for token in ids)

    return [
        m["content"]
        for m in messages[:200]
        if count(m["content"]) != count(harmless([m])[0]["content"])
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_text_becomes_a_control_id(directories: dict[str, Path], name: str) -> None:
    template = TEMPLATES[name]
    share = -(-TEXTS // len(MAKERS))
    seen = 0
    for kind, directory in directories.items():
        tokenizer = tokenizer_with(directory, template.source)
        controls = controls_of(tokenizer)
        assert set(MARKERS) - {"<unk>"} <= set(controls)
        ids_of_controls = set(controls.values())
        texts = Texts(f"{name} {kind}").many(share)
        seen += len(texts)
        messages = conversation(texts, template.has_system)
        ids = tokenizer.encode_chat(messages)
        structure = [token for token in ids if token in ids_of_controls]
        expected = tokenizer.encode_chat(harmless(messages))
        assert structure == [token for token in expected if token in ids_of_controls], (
            kind,
            guilty(tokenizer, messages, ids_of_controls),
        )
        for text in texts:
            raw = tokenizer.encode(text)
            assert raw[0] == tokenizer.bos_id
            assert ids_of_controls.isdisjoint(raw[1:]), (kind, text)
        if kind in LOSSLESS:
            shown, position = tokenizer.decode(ids).replace("\u2581", " "), 0
            for message in messages:
                core = message["content"].strip().encode("utf-8", "replace").decode()
                found = shown.find(core.replace("\u2581", " "), position)
                assert found >= position, (kind, message["content"])
                position = found + len(core)
    assert seen >= TEXTS


def test_the_templates_do_make_control_ids(directories: dict[str, Path]) -> None:
    """The comparison above would be empty for templates without any."""
    counts: Counter[str] = Counter()
    for name, template in TEMPLATES.items():
        tokenizer = tokenizer_with(directories["byte-level"], template.source)
        messages = conversation(["a", "b", "c", "d"], template.has_system)
        ids = tokenizer.encode_chat(messages)
        counts[name] = sum(token in controls_of(tokenizer).values() for token in ids)
    assert {name for name, count in counts.items() if count < 3} == {"falcon", "plain"}


def test_every_marker_and_every_disguise_is_in_the_texts() -> None:
    texts = "".join(Texts("any").many(TEXTS))
    assert all(texts.count(marker) > 100 for marker in MARKERS)
    assert all(character in texts for character in (*SPACES, *INVISIBLE, *WORDS))
    assert "".join(chr(ord(c) + 0xFEE0) for c in "<|user|>") in texts
