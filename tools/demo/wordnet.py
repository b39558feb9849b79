"""Reads the WordNet 3.0 database files: glosses, words, relations and counts of each sense.

Format: the `wndb(5WN)` and `cntlist(5WN)` manual pages. Only alphabetic words are kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

POS_NAMES = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
FILE_NAMES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
SENSE_KEY_POS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
OPPOSITE, INSTANCE, KINDS = "!", "@i", ("@", "@i")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A relation to another synset; word numbers count from 1, and 0 means the whole synset."""

    symbol: str
    target: tuple[str, int]
    source_word: int
    target_word: int


@dataclass(frozen=True, slots=True)
class Synset:
    """One meaning: the words that share it, their relations, and the gloss with its examples."""

    pos: str
    words: tuple[str, ...]
    pointers: tuple[Pointer, ...]
    gloss: str
    field: int = 0
    """Number of the lexicographer's file: 15 is places, 18 persons, 28 times."""


@dataclass(slots=True)
class Entry:
    """All that the index says of one lemma: senses by part of speech, and tag counts."""

    lemma: str
    senses: dict[str, list[int]] = field(default_factory=dict)
    count_by_pos: dict[str, int] = field(default_factory=dict)
    count_by_sense: dict[tuple[str, int], int] = field(default_factory=dict)
    """By part of speech and the number of the sense in it, from 0."""

    @property
    def count(self) -> int:
        """How often the lemma was tagged, in all its senses."""
        return sum(self.count_by_pos.values())


class WordNet:
    """The database in memory: `entries` by lemma and `synset(pos, offset)`."""

    def __init__(self, folder: Path) -> None:
        self.entries: dict[str, Entry] = {}
        self.phrases: list[str] = []
        """Lemmas of several words, with spaces."""
        self._synsets: dict[tuple[str, int], Synset] = {}
        for pos, name in FILE_NAMES.items():
            for line in _data_lines(folder / f"data.{name}"):
                self._synsets[pos, int(line[:8])] = _parse_synset(line)
            for line in _data_lines(folder / f"index.{name}"):
                self._add_index_line(line, pos)
        self._add_counts(folder / "cntlist.rev")

    def synset(self, pos: str, offset: int) -> Synset:
        """The synset at an offset of the file of a part of speech: n, v, a or r."""
        return self._synsets[pos, offset]

    def senses(self, lemma: str) -> list[Synset]:
        """All senses of the lemma, those of its most frequent part of speech first.

        Within a part of speech they go by their tag counts. Many counts are 0 or nearly so (a whale
        would be a large person), and there the sense that the lemma is the main word of, and that
        has more relations, comes first.
        """
        entry = self.entries[lemma]
        by_count = sorted(
            entry.senses,
            key=lambda p: (-entry.count_by_pos.get(p, 0), -len(entry.senses[p]), p),
        )
        found = []
        for pos in by_count:
            synsets = [self._synsets[pos, offset] for offset in entry.senses[pos]]
            order = sorted(
                range(len(synsets)),
                key=lambda i: (
                    -_importance(synsets[i], lemma, entry.count_by_sense.get((pos, i), 0))
                ),
            )
            found += [synsets[i] for i in order]
        return found

    def _add_index_line(self, line: str, pos: str) -> None:
        fields = line.split()
        lemma, synset_count = fields[0], int(fields[2])
        if re.fullmatch("[a-z]+", lemma):
            entry = self.entries.setdefault(lemma, Entry(lemma))
            entry.senses[pos] = [int(offset) for offset in fields[-synset_count:]]
        elif re.fullmatch("[a-z]{2,}(_[a-z]{2,})+", lemma):
            self.phrases.append(lemma.replace("_", " "))

    def _add_counts(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            sense_key, number, count = line.split()
            lemma, _, lex_sense = sense_key.partition("%")
            if lemma in self.entries:
                pos = SENSE_KEY_POS[lex_sense[0]]
                counts = self.entries[lemma].count_by_pos
                counts[pos] = counts.get(pos, 0) + int(count)
                self.entries[lemma].count_by_sense[pos, int(number) - 1] = int(count)


def _importance(synset: Synset, lemma: str, count: int) -> float:
    """The tag count of a sense, and what decides between senses that are hardly tagged."""
    is_main_word = synset.words[0].lower() == lemma
    return count + 2.0 * is_main_word + 0.5 * math.log1p(len(synset.pointers))


def licence(folder: Path) -> str:
    """The licence text, which stands numbered at the head of every database file."""
    lines = []
    with (folder / "data.noun").open(encoding="utf-8") as stream:
        for line in stream:
            if not line.startswith("  "):
                break
            lines.append(re.sub(r"^\s+\d+ ?", "", line).rstrip())
    return "\n".join(lines).strip() + "\n"


def _data_lines(path: Path) -> Iterator[str]:
    """Lines of a database file without the licence, whose lines begin with two spaces."""
    with path.open(encoding="utf-8") as stream:
        yield from (line for line in stream if not line.startswith("  "))


def _parse_synset(line: str) -> Synset:
    data, _, gloss = line.partition(" | ")
    fields = data.split()
    word_count = int(fields[3], 16)
    words = tuple(re.sub(r"\(.*?\)", "", fields[4 + 2 * i]) for i in range(word_count))
    start = 5 + 2 * word_count
    pointers = []
    for i in range(int(fields[start - 1])):
        symbol, offset, pos, words_hex = fields[start + 4 * i : start + 4 * i + 4]
        target = ("a" if pos == "s" else pos, int(offset))
        pointers.append(Pointer(symbol, target, int(words_hex[:2], 16), int(words_hex[2:], 16)))
    return Synset(fields[2], words, tuple(pointers), gloss.strip(), int(fields[1]))
