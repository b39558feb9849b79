"""How often words are written today, by the wordfreq package.

Needed only to make the corpus again: `pip install wordfreq`. Its figures come from subtitles, news,
books, the web and other texts; WordNet's own tag counts come from texts of the 1960s.
"""

from __future__ import annotations

from collections.abc import Mapping


def english_frequencies() -> Mapping[str, float]:
    """Frequency of each English word form in running text, between 0 and 1, in small letters."""
    from wordfreq import get_frequency_dict

    frequencies: Mapping[str, float] = get_frequency_dict("en", wordlist="large")
    return frequencies


def foreign_words(languages: tuple[str, ...], count: int) -> dict[str, list[str]]:
    """The most frequent words of other languages, `count` of each, most frequent first."""
    from wordfreq import top_n_list

    return {language: list(top_n_list(language, count)) for language in languages}
