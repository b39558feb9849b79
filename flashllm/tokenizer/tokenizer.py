"""From text to token ids and back, for the tokenizer files that come with a model.

Text never becomes control tokens: plain text and the contents of messages are encoded by a
vocabulary that cannot reach them; only the chat template's own text is searched for markers.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flashllm.errors import FlashllmError
from flashllm.options import DEFAULT_REASONING, ReasoningOptions
from flashllm.tokenizer import reasoning as reasoning_text
from flashllm.tokenizer.channels import ChannelDecoder, ChannelTokens
from flashllm.tokenizer.chat_template import (
    PLAIN_STOP,
    Message,
    Segment,
    check_messages,
    reasoning_variables_in,
    render_plain,
    render_template,
)
from flashllm.tokenizer.id_reuse import AnswerSpan, TokenReuse
from flashllm.tokenizer.settings import TokenizerSettings, read_settings
from flashllm.tokenizer.vocabulary import (
    Vocabulary,
    load_byte_level,
    load_json,
    load_sentencepiece,
)

_REASONING_BEGIN = reasoning_text.BEGIN.encode()
_MARK_TOKENS_MAX = 16
"""The mark of reasoning and white space behind it are no more tokens at the end of a prompt."""


class StreamDecoder:
    """Turns ids into text one by one; the bytes of an unfinished character wait for the next id."""

    is_over = False
    """Whether the answer is complete without a token that ends it: never, where none says so."""

    def __init__(self, tokenizer: Tokenizer, begun: str = "") -> None:
        """`begun` is text of the answer that is in the prompt; the first id tells it."""
        self._tokenizer = tokenizer
        self._begun = begun
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.vocabulary.strips_leading_space

    def push(self, token: int) -> str:
        """The characters that this id completes, possibly none."""
        piece = self._tokenizer.piece_bytes(token)
        if piece and self._at_start:
            piece = piece.removeprefix(b" ")
            self._at_start = False
        begun, self._begun = self._begun, ""
        return begun + self._decoder.decode(piece)

    def flush(self) -> str:
        """What remains: a replacement character where a character was cut off."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """Encodes and decodes for one model."""

    def __init__(self, vocabulary: Vocabulary, settings: TokenizerSettings) -> None:
        self.vocabulary = vocabulary
        self.vocab_size = vocabulary.size
        self.has_chat_template = bool(settings.template)
        self._template = settings.template
        self._tokens = settings.tokens
        self._controls = vocabulary.control_ids
        self._channels = ChannelTokens.of(self._controls, settings.template)
        prefix = vocabulary.prefix_ids
        self.bos_id = self._control(settings.tokens.get("bos_token"), prefix[0] if prefix else None)
        eos_id = self._control(settings.tokens.get("eos_token"), None)
        self.eos_ids = tuple(
            dict.fromkeys(
                [
                    *settings.eos_ids,
                    *([] if eos_id is None else [eos_id]),
                    *(self._channels.last if self._channels else ()),
                ]
            )
        )
        if settings.add_bos is not None:
            prefix = (self.bos_id,) if settings.add_bos and self.bos_id is not None else ()
        self._prefix = list(prefix)
        pad_id = self._control(settings.tokens.get("pad_token"), None)
        self._silent = {self.bos_id, pad_id, *self.eos_ids}
        self._control_tokens = frozenset(self._controls.values())
        spellings = sorted(filter(None, self._controls), key=len, reverse=True)
        self._markers = (
            re.compile("(" + "|".join(map(re.escape, spellings)) + ")") if spellings else None
        )

    @functools.cached_property
    def reasoning_variables(self) -> frozenset[str]:
        """The variables of reasoning that the template reads; empty without a template."""
        return reasoning_variables_in(self._template)

    @functools.cached_property
    def chat_stops(self) -> tuple[str, ...]:
        """Strings that end an answer, besides the model's own end.

        With a template, the marker that it puts after an answer, since some files name another end;
        without one, the beginning of the next question.
        """
        if not self._template:
            return (PLAIN_STOP,)
        if self._channels:  # the marker ends each message of an answer; the decoder knows the last
            return ()
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            segments = render_template(self._template, talk, self._tokens)
        except FlashllmError:  # it will be told when the template is used
            return ()
        behind = itertools.takewhile(lambda segment: segment.message is None, reversed(segments))
        text = "".join(reversed([segment.text for segment in behind]))
        first = self._markers.search(text) if self._markers else None
        return (first[0],) if first and self._controls[first[0]] not in self.eos_ids else ()

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, after the beginning-of-text id if the model has one."""
        return self._prefix + self._encode_parts([text])

    def encode_chat(
        self,
        messages: Sequence[Message],
        known: Mapping[int, Sequence[int]] | None = None,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
    ) -> list[int]:
        """Ids of a conversation, ready for the next answer.

        `known` has the ids that answers were generated with, by message number. They replace the
        ids of the same text, so that the prompt begins like the context; they never change a text.
        `reasoning` is what the template is told, if it reads that.

        Raises `UsageError` if the template refuses the conversation, `ModelError` if it is broken.
        """
        check_messages(messages)
        if self._template:
            segments = render_template(self._template, messages, self._tokens, reasoning)
            return self._encode_segments(segments, known or {})
        return self._prefix + self._encode_segments(render_plain(messages), known or {})

    def encode_answer(self, text: str, prompt: Sequence[int] = ()) -> list[int]:
        """Ids of the beginning of an answer, to go behind a prompt."""
        if self._channels:
            return self._channels.encode_answer(text, lambda part: self._encode_parts([part]))
        return self._encode_parts([text.removeprefix(self._begun_in(prompt))])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without beginning, end and padding; other markers appear as written.

        An answer in channels has the marks of reasoning and tool calls instead of its headers.
        """
        decoder = self.decoder()
        return "".join([decoder.push(token) for token in ids]) + decoder.flush()

    def decoder(self, prompt: Sequence[int] = ()) -> StreamDecoder | ChannelDecoder:
        """A decoder for ids that come one by one, behind this prompt."""
        if self._channels:
            return ChannelDecoder(self._channels, StreamDecoder(self))
        return StreamDecoder(self, self._begun_in(prompt))

    def piece_bytes(self, token: int) -> bytes:
        """Bytes that one token adds to the text."""
        return b"" if token in self._silent else self.vocabulary.piece_bytes(token)

    def _begun_in(self, prompt: Sequence[int]) -> str:
        """What a prompt has of the answer: the mark of reasoning, where it ends in that."""
        end = b"".join([self.piece_bytes(token) for token in prompt[-_MARK_TOKENS_MAX:]])
        return f"{reasoning_text.BEGIN}\n" if end.rstrip().endswith(_REASONING_BEGIN) else ""

    def _encode_segments(
        self, segments: Iterable[Segment], known: Mapping[int, Sequence[int]]
    ) -> list[int]:
        """Markers in the template's text become ids; text between two markers is encoded as one."""
        parts: list[str | int] = []
        run: list[str] = []
        places: list[AnswerSpan] = []
        for segment in segments:
            if segment.message is not None:
                own = known.get(segment.message, ())
                own = self._channels.body(own) if self._channels else own
                if own:
                    places.append(AnswerSpan(len(parts), "".join(run), segment.text, own))
                run.append(segment.text)
                continue
            for piece in self._markers.split(segment.text) if self._markers else [segment.text]:
                if piece in self._controls:
                    parts += ["".join(run), self._controls[piece]]
                    run.clear()
                else:
                    run.append(piece)
        parts.append("".join(run))
        ids = self._encode_parts(parts)
        if not places:
            return ids
        # Made for each prompt: were it kept, it and this tokenizer would refer to each other, and
        # go only with the garbage collector.
        return TokenReuse(self.piece_bytes, self._control_tokens).put(ids, parts, places)

    def _encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        # A lone surrogate, as in a file name that is not UTF-8, has no bytes to encode.
        return self.vocabulary.encode(
            [
                part.encode("utf-8", "replace").decode() if isinstance(part, str) else part
                for part in parts
                if part != ""
            ]
        )

    def _control(self, spelling: str | None, otherwise: int | None) -> int | None:
        return otherwise if spelling is None else self._controls.get(spelling, otherwise)


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer in a model's directory, None if there is none; `ModelError` if it is damaged.

    A `tokenizer.json` knows tokens that a `tokenizer.model` may lack, so it takes precedence.
    """
    json_file, model = directory / "tokenizer.json", directory / "tokenizer.model"
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    if json_file.is_file():
        settings = read_settings(directory)
        return Tokenizer(load_json(json_file, settings), settings)
    if model.is_file():
        settings = read_settings(directory)
        vocabulary = load_sentencepiece(model, settings)
        return Tokenizer(
            vocabulary, replace(settings, tokens={**vocabulary.tokens, **settings.tokens})
        )
    if vocab.is_file() and merges.is_file():
        settings = read_settings(directory)
        settings = replace(
            settings, tokens=settings.tokens or {"bos_token": "</s>", "eos_token": "</s>"}
        )
        if settings.add_bos is None and settings.tokens.get("bos_token") == "</s>":
            settings = replace(settings, add_bos=True)  # GPT-2's own says otherwise
        return Tokenizer(load_byte_level(vocab, merges, settings), settings)
    return None
