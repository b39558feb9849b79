"""Turns WordNet into what the model shall know: one canonical answer per (word, intent).

A lemma is a single alphabetic word. The words that are written most often today are taken; the
first sense in a word's most frequent part of speech decides its definition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .inflection import Irregular, inflected_forms
from .misspelling import misspellings
from .wordnet import INSTANCE, KINDS, OPPOSITE, POS_NAMES, Synset, WordNet

GLOSS_WORDS_MAX = 18
GLOSS_WORDS_MAX_MORE = 26
"""Of common words that are added, since their gloss cannot be cut short (film, bridge)."""
GLOSS_WORDS_WANTED = 15
"""Longer glosses lose what stands in parentheses, then their last clauses."""
GLOSS_WORDS_MIN = 5
"""No clause is cut where fewer words would be left."""
# Before these a long gloss may end and still be true.
CONNECTIVES = re.compile(
    r" (?=(?:that|which|in which|on which|when|where|whose|by which|and then|and is|and that|having"
    r"|used|characterized|consisting|usually|especially|with|containing|made)\b)"
)
EXAMPLE_WORDS_MAX = 7
SYNONYMS_MAX = 1
MISSPELLINGS_MAX = 4
RARE = 3e-8
"""Frequency below which a synonym is too rare to be a help."""
FORM_FREQUENCY_MIN = 2e-7
FORM_SHARE = 0.3
"""A word that is also a form of another is a word of its own from this share of its tags."""
IRREGULAR_TAGS_MIN = 10
PERSONS = 18
NOT_FOR_EVERYBODY = re.compile(
    r"\b(slurs?|obscene|vulgar|taboo|offensive|disparaging|derogatory|sexual intercourse|ethnic"
    r"|barmaids?|breasts?|naked|nude|raped?|whores?|Jews?|Negro(es)?)\b"
)
ALWAYS_IN = ("ocean", "hello", "goodbye", "thanks")
ADDED = ("rose", "stranger")
"""Taken for forms of rise and strange by their tags."""
# Words of grammar: where WordNet has them at all, it has them as something else (he is helium).
FUNCTION_WORDS = frozenset(
    "a an the and or nor but if of in on at to for from by with as it its itself he him his "
    "himself she her hers herself they them their theirs themselves we us our ours you your "
    "yours i me my mine myself yourself who whom whose which what that this these those am is "
    "are was were been does did has had would could should shall might must than then because "
    "since until unless while whether although though into onto upon per via amid among "
    "amongst another any each every some such both either neither don didn isn ain ll ve re "
    "im".split()
)


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of one lemma; empty where WordNet says nothing."""

    word: str
    """As it is written: names of places and days with a capital."""
    pos: str
    gloss: str
    synonyms: tuple[str, ...] = ()
    opposite: str = ""
    kind: str = ""
    is_instance: bool = False
    """Whether the word names one thing of its kind: France, and not a country."""
    example: str = ""
    forms: tuple[str, ...] = ()
    """Other forms, which lead to this word: plurals, tenses, comparatives."""
    misspellings: tuple[str, ...] = ()

    def answers(self) -> dict[str, str]:
        """The canonical answer for every intent."""
        word = self.word
        synonyms = f"Another word for {word}: {', '.join(self.synonyms)}." if self.synonyms else ""
        opposite = f"The opposite of {word} is {self.opposite}." if self.opposite else ""
        kind = self._kind_answer()
        example = f"For example: {self.example}" if self.example else ""
        definition = f"{word} ({self.pos}): {self.gloss}"
        known = (f"{definition}.", synonyms, opposite, kind, example)
        return {
            "definition": definition,
            "part_of_speech": f"{word} is {with_article(self.pos)}.",
            "synonyms": synonyms or f"I know no synonym of {word}.",
            "opposite": opposite or f"I know no opposite of {word}.",
            "kind": kind or f"I know no kind for {word}.",
            "example": example or f"I know no example of {word}.",
            "spelling": f"It is spelled {word}.",
            "everything": " ".join(filter(None, known)),
        }

    def _kind_answer(self) -> str:
        if not self.kind:
            return ""
        if self.is_instance:
            return f"{self.word} is {with_article(self.kind)}."
        if self.pos == "verb":
            return f"To {self.word} is a way to {self.kind}."
        return f"{self.word} is a kind of {self.kind}."

    def is_known(self, intent: str) -> bool:
        """Whether WordNet says something for the intent."""
        return bool(
            {
                "opposite": self.opposite,
                "kind": self.kind,
                "example": self.example,
                "synonyms": self.synonyms,
            }.get(intent, True)
        )

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Fact:
        """The fact that `as_dict` wrote, read back from JSON."""
        lists = ("synonyms", "forms", "misspellings")
        return cls(**{**record, **{name: tuple(record[name]) for name in lists}})

    def as_dict(self) -> dict[str, object]:
        """The fact as plain values, ready for JSON."""
        return asdict(self)


def did_you_mean(word: str, answer: str) -> str:
    """The answer where a word was misspelt: what it was taken for, then the answer for that."""
    return f"Did you mean {word}? {answer}"


def with_article(word: str) -> str:
    """The word behind "a" or "an", by its first letter."""
    sounds_like_you = word.lower().startswith(("eu", "uni", "use", "usu", "ut", "one"))
    return ("an " if word[0].lower() in "aeiou" and not sounds_like_you else "a ") + word


def short_gloss(gloss: str, words_max: int = GLOSS_WORDS_MAX) -> str:
    """The first clause of a gloss, or "" where no clean cut makes it short enough."""
    clause = re.split(r'[;"]', gloss, maxsplit=1)[0].strip(" :,")
    clause = re.sub(r"^\([^)]*\)\s*", "", clause)
    clause = re.sub(r"`([^`']*)'", r"\1", clause)
    if len(clause.split()) > GLOSS_WORDS_WANTED:
        clause = re.sub(r"\s*\([^)]*\)", "", clause)
    while len(clause.split()) > GLOSS_WORDS_WANTED:
        shorter = re.sub(r"[,:][^,:]*$", "", clause)
        if shorter == clause or len(shorter.split()) < GLOSS_WORDS_MIN:
            break
        clause = shorter
    if len(clause.split()) > words_max:
        clause = _cut_before_connective(clause)
    well_formed = clause.count("(") == clause.count(")") and clause.isascii()
    return clause if well_formed and 0 < len(clause.split()) <= words_max else ""


def _cut_before_connective(clause: str) -> str:
    """The longest beginning of a clause that is short enough and ends before a connective."""
    ends = [match.start() for match in CONNECTIVES.finditer(clause)]
    fits = (clause[:end] for end in reversed(ends) if len(clause[:end].split()) <= GLOSS_WORDS_MAX)
    cut = next(fits, "")
    return cut.rstrip(" ,") if len(cut.split()) >= GLOSS_WORDS_MIN else clause


def written(synset: Synset, lemma: str) -> str:
    """How the lemma is written in this sense, or "" where this sense is not for the lexicon.

    Abbreviations (IT, US) and names of persons are not.
    """
    spellings = [word for word in synset.words if word.lower() == lemma]
    if not spellings or NOT_FOR_EVERYBODY.search(synset.gloss):
        return ""
    word = spellings[0]
    is_instance = any(pointer.symbol == INSTANCE for pointer in synset.pointers)
    is_abbreviation = word[1:] != lemma[1:] or (word != lemma and len(word) < 3)
    is_person = word != lemma and synset.field == PERSONS and is_instance
    if is_abbreviation or is_person:
        return ""
    return word


def _quotes(gloss: str) -> list[str]:
    return [quote.strip() for quote in re.findall(r'"([^"]+)"', gloss)]


def _example(synsets: Sequence[Synset], spellings: Collection[str]) -> str:
    """The first short example that has the word, or one of its forms, in it."""
    for quote in (quote for synset in synsets for quote in _quotes(synset.gloss)):
        words = re.findall(r"[A-Za-z]+", quote)
        if len(quote.split()) <= EXAMPLE_WORDS_MAX and quote.isascii() and "`" not in quote:
            is_of_word = any(word.lower() in spellings for word in words) and len(words) > 1
            if is_of_word and not NOT_FOR_EVERYBODY.search(quote):
                return quote
    return ""


def _word(raw: str) -> str:
    return raw.replace("_", " ")


def _related(net: WordNet, synset: Synset, lemma: str, symbols: tuple[str, ...]) -> str:
    """The first word that a relation of this lemma (or of its whole synset) leads to."""
    numbers = {i + 1 for i, word in enumerate(synset.words) if word.lower() == lemma} | {0}
    for pointer in synset.pointers:
        if pointer.symbol in symbols and pointer.source_word in numbers:
            found = _word(net.synset(*pointer.target).words[max(pointer.target_word, 1) - 1])
            if found.lower() != lemma:
                return found
    return ""


def _synonyms(synset: Synset, lemma: str, frequencies: Mapping[str, float]) -> tuple[str, ...]:
    """The other words of the synset, most frequent first; phrases come last."""
    others = [word for word in synset.words if word.lower() != lemma and "." not in word]

    def frequency(word: str) -> float:
        return frequencies.get(word.lower(), 0.0)

    usual = [word for word in others if "_" in word or frequency(word) >= RARE]
    usual.sort(key=lambda word: ("_" in word, -frequency(word)))
    return tuple(_word(word) for word in usual[:SYNONYMS_MAX])


def make_fact(
    net: WordNet,
    lemma: str,
    frequencies: Mapping[str, float] | None = None,
    gloss_words_max: int = GLOSS_WORDS_MAX,
) -> Fact | None:
    """Facts of one lemma, or None where no sense is for the lexicon or its gloss is too long."""
    senses = net.senses(lemma)
    usable = [synset for synset in senses if written(synset, lemma)]
    if not usable:
        return None
    synset = usable[0]
    gloss = short_gloss(synset.gloss, gloss_words_max)
    if not gloss:
        return None
    same_pos = [sense for sense in usable if POS_NAMES[sense.pos] == POS_NAMES[synset.pos]]
    opposites = (_related(net, sense, lemma, (OPPOSITE,)) for sense in usable)
    return Fact(
        word=written(synset, lemma),
        pos=POS_NAMES[synset.pos],
        gloss=gloss,
        synonyms=_synonyms(synset, lemma, frequencies or {}),
        opposite=next(filter(None, opposites), ""),
        kind=_related(net, synset, lemma, KINDS),
        is_instance=bool(_related(net, synset, lemma, (INSTANCE,))),
        example=_example(same_pos, {lemma}),
    )


def all_forms(net: WordNet, irregular: Irregular) -> dict[str, set[str]]:
    """Inflected form -> the lemmas that it is a form of."""
    bases: dict[str, set[str]] = {}
    for lemma, entry in net.entries.items():
        for pos in entry.senses:
            for form in inflected_forms(lemma, pos, irregular):
                if form != lemma:
                    bases.setdefault(form, set()).add(lemma)
    return bases


def is_own_word(net: WordNet, lemma: str, bases: Collection[str], is_regular: bool) -> bool:
    """Whether a lemma that is also a form of other lemmas has a meaning of its own that counts."""
    count = net.entries[lemma].count
    base_count = max((net.entries[base].count for base in bases), default=0)
    if not is_regular and count >= IRREGULAR_TAGS_MIN:
        return True
    return count > 0 and count >= FORM_SHARE * base_count


@dataclass(frozen=True, slots=True)
class Words:
    """Which words there are, how often they are written, and which are forms of which."""

    net: WordNet
    frequencies: Mapping[str, float]
    bases: Mapping[str, set[str]]
    irregular_forms: Collection[str] = ()

    def lemmas(self) -> list[str]:
        """Lemmas with a meaning of their own, the most often written first; then a to z."""
        kept = [
            lemma
            for lemma in self.net.entries
            if lemma not in FUNCTION_WORDS and self._is_usual(lemma) and self._is_own(lemma)
        ]
        forms: dict[str, list[str]] = {}
        for form, bases in self.bases.items():
            if form not in FUNCTION_WORDS and len(bases) == 1:
                forms.setdefault(min(bases), []).append(form)

        def frequency(lemma: str) -> float:
            own = self.frequencies.get(lemma, 0.0)
            inflected = sum(self.frequencies.get(form, 0.0) for form in forms.get(lemma, ()))
            return own + min(0.5 * inflected, 3 * own)

        return sorted(kept, key=lambda lemma: (-frequency(lemma), lemma))

    def _is_usual(self, lemma: str) -> bool:
        """Whether it is more than letters that texts have for other reasons (ti, cu)."""
        return len(lemma) > 2 or (len(lemma) == 2 and self.net.entries[lemma].count > 0)

    def _is_own(self, lemma: str) -> bool:
        bases = self.bases.get(lemma)
        is_regular = lemma not in self.irregular_forms
        return not bases or is_own_word(self.net, lemma, bases, is_regular)


def find_words(net: WordNet, frequencies: Mapping[str, float], irregular: Irregular) -> Words:
    """Words of WordNet as they are written today."""
    irregular_forms = {
        form for by_base in irregular.values() for fs in by_base.values() for form in fs
    }
    return Words(net, frequencies, all_forms(net, irregular), irregular_forms)


def make_lexicon(words: Words, count: int) -> list[Fact]:
    """Facts of the most frequent lemmas, and of the few that are always in."""
    net = words.net
    ranked = words.lemmas()
    facts: dict[str, Fact] = {}
    for lemma in [*(word for word in ALWAYS_IN if word in net.entries), *ranked]:
        if len(facts) == count:
            break
        fact = None if lemma in facts else make_fact(net, lemma, words.frequencies)
        if fact is not None:
            facts[lemma] = fact
    rank = {lemma: index for index, lemma in enumerate(ranked)}
    lemmas = sorted(facts, key=lambda lemma: rank.get(lemma, 0))
    return _all_spelt(words, {lemma: facts[lemma] for lemma in lemmas})


def more_facts(words: Words, facts: Sequence[Fact]) -> list[Fact]:
    """Facts of words as common as those of a lexicon, left out of it since their gloss is long."""
    known = {fact.word.lower() for fact in facts}
    ranked = words.lemmas()
    last = max(ranked.index(lemma) for lemma in known if lemma in ranked)
    found: dict[str, Fact] = {}
    for lemma in (*ranked[:last], *ADDED):
        if lemma in known or lemma not in words.net.entries:
            continue
        fact = make_fact(words.net, lemma, words.frequencies, GLOSS_WORDS_MAX_MORE)
        if fact is not None:
            found[lemma] = fact
    return _all_spelt(words, found)


def _all_spelt(words: Words, facts: Mapping[str, Fact]) -> list[Fact]:
    """Facts by lemma, with the forms and misspellings of their words."""
    forms = _forms_by_lemma(words, facts)
    right = set(words.net.entries) | set(words.bases) | FUNCTION_WORDS
    return [
        _spelt(fact, lemma, forms.get(lemma, ()), words, right) for lemma, fact in facts.items()
    ]


def _forms_by_lemma(words: Words, facts: Mapping[str, Fact]) -> dict[str, tuple[str, ...]]:
    """The forms that lead to each word of the lexicon: to the most frequent one of their bases."""
    found: dict[str, list[str]] = {}
    for form, bases in sorted(words.bases.items()):
        known = [base for base in bases if base in facts]
        known = [base for base in known if facts[base].word == base]  # names have no forms
        is_used = words.frequencies.get(form, 0.0) >= FORM_FREQUENCY_MIN
        if known and is_used and form not in facts and form not in FUNCTION_WORDS:
            best = max(known, key=lambda base: (words.frequencies.get(base, 0.0), base))
            found.setdefault(best, []).append(form)
    return {lemma: tuple(forms) for lemma, forms in found.items()}


def _spelt(
    fact: Fact, lemma: str, forms: tuple[str, ...], words: Words, right: Collection[str]
) -> Fact:
    wrong = misspellings(lemma, words.frequencies, right)
    seen = tuple(form for form in wrong if words.frequencies.get(form, 0.0) > 0.0)
    wrong = seen[:MISSPELLINGS_MAX] or wrong[:1]
    senses = [s for s in words.net.senses(lemma) if written(s, lemma)]
    same_pos = [s for s in senses if POS_NAMES[s.pos] == fact.pos]
    example = fact.example or _example(same_pos, {lemma, *forms})
    values = {**fact.as_dict(), "forms": forms, "misspellings": wrong, "example": example}
    return Fact.from_dict(values)


def rare_words(words: Words, facts: Sequence[Fact]) -> list[str]:
    """Lemmas outside the lexicon: words that exist and that the model shall not know."""
    known = {form for fact in facts for form in (fact.word.lower(), *fact.forms)}
    return sorted(
        lemma
        for lemma in words.net.entries
        if 2 < len(lemma) < 14 and lemma not in known and not words.bases.get(lemma, set()) & known
    )


def unlisted_words(words: Words, facts: Sequence[Fact], count: int) -> list[str]:
    """Words that are written and that no dictionary has: names, brands, slang; most frequent first.

    Those that the lexicon's words could be misspelt as are left out.
    """
    taken = {form for fact in facts for form in (fact.word.lower(), *fact.forms)}
    taken |= {form for fact in facts for form in fact.misspellings} | set(words.bases)
    taken |= set(words.net.entries) | FUNCTION_WORDS
    usual = sorted(words.frequencies, key=lambda word: (-words.frequencies[word], word))
    fits = (w for w in usual if w.isascii() and w.isalpha() and 3 < len(w) < 14 and w not in taken)
    return [word for word, _ in zip(fits, range(count), strict=False)]
