"""Reads the WordNet 3.0 database files: glosses, words, relations and counts of each sense.

Format: the `wndb(5WN)` and `cntlist(5WN)` manual pages. Only single alphabetic words are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

POS_NAMES = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
FILE_NAMES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
SENSE_KEY_POS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
OPPOSITE, SIMILAR, KINDS = "!", "&", ("@", "@i")


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


@dataclass(slots=True)
class Entry:
    """All that the index says of one lemma: senses by part of speech, and tag counts."""

    lemma: str
    senses: dict[str, list[int]] = field(default_factory=dict)
    count_by_pos: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How often the lemma was tagged, in all its senses."""
        return sum(self.count_by_pos.values())

    @property
    def pos(self) -> str:
        """The part of speech it is most often used as; ties go to the one with more senses."""
        return max(self.senses, key=lambda p: (self.count_by_pos.get(p, 0), len(self.senses[p])))


class WordNet:
    """The database in memory: `entries` by lemma and `synset(pos, offset)`."""

    def __init__(self, folder: Path) -> None:
        self.entries: dict[str, Entry] = {}
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

    def first_synset(self, lemma: str) -> Synset:
        """The most frequent sense of the lemma in its most frequent part of speech."""
        entry = self.entries[lemma]
        return self._synsets[entry.pos, entry.senses[entry.pos][0]]

    def _add_index_line(self, line: str, pos: str) -> None:
        fields = line.split()
        lemma, synset_count = fields[0], int(fields[2])
        if re.fullmatch("[a-z]+", lemma):
            entry = self.entries.setdefault(lemma, Entry(lemma))
            entry.senses[pos] = [int(offset) for offset in fields[-synset_count:]]

    def _add_counts(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            sense_key, _, count = line.split()
            lemma, _, lex_sense = sense_key.partition("%")
            if lemma in self.entries:
                pos = SENSE_KEY_POS[lex_sense[0]]
                counts = self.entries[lemma].count_by_pos
                counts[pos] = counts.get(pos, 0) + int(count)


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
    return Synset(fields[2], words, tuple(pointers), gloss.strip())
