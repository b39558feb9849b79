"""What can be changed while one chats: names, words, and how a text becomes a value."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flashllm.engine.sampling import Sampling
from flashllm.errors import UsageError
from flashllm.options import DEFAULT_MAX_TOKENS, DEFAULT_REASONING, ReasoningOptions
from flashllm.settings.options import ANSWER_OPTIONS, MODEL_OPTIONS, REASONING_OPTIONS
from flashllm.ui.widgets.themes import find_theme, nearest
from flashllm.units import GIB, MIB
from flashllm.untrusted.terminal import sanitize, sanitize_line


@dataclass(frozen=True, slots=True)
class Setting:
    """One of them: its name in `/set` and in config.toml, a label, what it does, other names."""

    name: str
    label: str
    help: str
    others: tuple[str, ...] = ()


SETTINGS = (
    Setting("system", "System prompt", "what the model is told before you speak"),
    Setting(
        "temp",
        "Temperature",
        "0 always takes the likeliest token; 1 draws as the model was trained",
        ("temperature",),
    ),
    Setting("top_k", "Top-k", "draw from the k likeliest tokens; 0 is all", ("top-k",)),
    Setting("top_p", "Top-p", "draw from the likeliest that hold this share; 1 is all", ("top-p",)),
    Setting(
        "min_p", "Min-p", "leave out what is less likely than this share of the best", ("min-p",)
    ),
    Setting(
        "repetition_penalty",
        "Repetition penalty",
        "above 1, tokens that were there become less likely",
        ("repetition-penalty", "penalty"),
    ),
    Setting("seed", "Seed", "the same seed draws the same tokens"),
    Setting("max_tokens", "Longest answer", "tokens after which an answer stops", ("n",)),
    Setting("think", "Thinking", "on or off; auto: as the model's chat template has it"),
    Setting("effort", "Effort", "low, medium or high; auto: as the model's chat template has it"),
    Setting(
        "memory",
        "Memory",
        "ceiling of both processes, like 6GiB; auto: of what is free; opens the model again",
    ),
    Setting(
        "ctx_size",
        "Context",
        "tokens that the context holds; auto: as the model allows; opens the model again",
        ("ctx-size", "context"),
    ),
    Setting("theme", "Theme", "colours of the chat"),
)
AUTO = "auto"
"""What is typed and shown where the plan chooses."""
_OPTIONS = {option.name: option for option in ANSWER_OPTIONS}
_REASONING = tuple(option.name for option in REASONING_OPTIONS)
_LIMITS = {option.name: option for option in MODEL_OPTIONS if option.name in ("memory", "ctx_size")}
_FIELDS = {"temp": "temperature"}
"""Fields of `Sampling` that have another name than their option."""


@dataclass(frozen=True, slots=True)
class ChatValues:
    """What the next answer is made with, how the model is opened, and what the chat looks like."""

    system: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = DEFAULT_MAX_TOKENS
    theme: str = "textual-dark"
    memory: int | None = None
    """The ceiling in bytes; None: of what is free."""
    ctx_size: int | None = None
    reasoning: ReasoningOptions = DEFAULT_REASONING

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Ceiling and context, for which the model is opened again."""
        return self.memory, self.ctx_size

    def text_of(self, name: str) -> str:
        """A value as one would type it."""
        if name in _REASONING:
            return str(getattr(self.reasoning, name))
        if name in _OPTIONS and name != "max_tokens":
            return repr(getattr(self.sampling, _FIELDS.get(name, name))).removesuffix(".0")
        if name in _LIMITS:
            limit: int | None = getattr(self, name)
            return AUTO if limit is None else _format_limit(name, limit)
        return str(getattr(self, name))

    def with_text(self, name: str, text: str, themes: Sequence[str] = ()) -> ChatValues:
        """The values with one of them read from a text; `UsageError` says what it takes."""
        setting = find_setting(name)
        if setting.name == "system":
            return replace(self, system=sanitize(text).strip())
        if setting.name == "theme":
            return replace(self, theme=find_theme(text, themes or (self.theme,)))
        try:
            if setting.name in _LIMITS:
                is_auto = text.strip().lower() in (AUTO, "")
                limit = None if is_auto else _LIMITS[setting.name].parse(sanitize_line(text))
                limits: dict[str, Any] = {setting.name: limit}
                return replace(self, **limits)
            text = sanitize_line(text)
            option = _OPTIONS[setting.name]
            value = option.parse(text.strip().lower() if option.choices else text)
            if setting.name == "max_tokens":
                return replace(self, max_tokens=value)
            changed: dict[str, Any] = {_FIELDS.get(setting.name, setting.name): value}
            if setting.name in _REASONING:
                return replace(self, reasoning=replace(self.reasoning, **changed))
            return replace(self, sampling=replace(self.sampling, **changed))
        except UsageError as error:
            raise UsageError(f"{setting.name}: {error}") from error

    def kept(self) -> dict[str, Any]:
        """What is kept with a conversation: how answers are made, by the names of options."""
        kept = {
            name: getattr(self.sampling, _FIELDS.get(name, name))
            for name in _OPTIONS
            if name != "max_tokens" and name not in _REASONING
        }
        reasoning = {name: getattr(self.reasoning, name) for name in _REASONING}
        return {**kept, "max_tokens": self.max_tokens, **reasoning}

    def adopting(self, kept: Mapping[str, Any], but: Collection[str] = ()) -> ChatValues:
        """The values with those of a conversation, but for some; what makes no sense is left."""
        values = self
        for name in kept.keys() & _OPTIONS.keys() - set(but):
            with contextlib.suppress(UsageError):
                values = values.with_text(name, str(kept[name]))
        return values

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, to be shown."""
        return [(setting.name, self.text_of(setting.name)) for setting in SETTINGS]


def _format_limit(name: str, limit: int) -> str:
    """As it is typed: `6GiB`, and other bytes as they are; `4096` tokens."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB)):
        if name == "memory" and limit % factor == 0:
            return f"{limit // factor}{unit}"
    return str(limit)


def find_setting(name: str) -> Setting:
    """The setting of that name; `UsageError` with the nearest one."""
    wanted = name.strip().lower()
    names = {known: s for s in SETTINGS for known in (s.name, *s.others)}
    if wanted not in names:
        hint = nearest(wanted, list(names)) or f"there are {', '.join(s.name for s in SETTINGS)}"
        raise UsageError(f"there is no setting {sanitize_line(name)!r}; {hint}")
    return names[wanted]
