"""The engine's public names, as the chat and `run` see them: typing only, nothing is loaded.

The engine in this process (`local.Model`), the one in a process of its own (`process.client`) and
scripted ones for tests are interchangeable behind these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flashllm.telemetry.token_record import EngineToken

if TYPE_CHECKING:
    from flashllm.engine.sampling import Sampling
    from flashllm.planning.model_info import ModelInfo
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.costs import PrefillCost
    from flashllm.telemetry.device_rates import DeviceRates
    from flashllm.telemetry.neuron_map import NeuronMap
    from flashllm.tokenizer.chat_template import Message


OnPrefill = Callable[[float, int], None]
"""Told of tokens of the prompt that are done, and of all that are read: not of those kept."""


@dataclass(frozen=True, slots=True)
class OpeningProgress:
    """How far the opening of a model is: what is being done, and of how many bytes so many.

    `total` is 0 where nobody knows how much there is to do.
    """

    phase: str
    done: int = 0
    total: int = 0


OnOpening = Callable[[OpeningProgress], None]
"""Told of that, from any thread."""


class EngineGeneration(Protocol):
    """Iterator of tokens; afterwards `finish_reason`, `text` and `report()` tell how it went."""

    finish_reason: str | None
    """"stop", "length", "context" or "cancelled"; None while it runs."""
    text: str
    ids: list[int]
    prompt_tokens: int
    prefill: PrefillCost

    @property
    def reused_tokens(self) -> int:
        """Tokens of the prompt that the cache held already; known with the first token."""

    def __iter__(self) -> Iterator[EngineToken]: ...

    def __next__(self) -> EngineToken: ...

    def report(self) -> dict[str, Any]:
        """Everything about this generation, as `flashllm run --json` prints it."""

    def close(self) -> None:
        """Stop here; the next `__next__` ends the iteration."""


class EngineTokenizer(Protocol):
    """From text to ids and back."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model came with one; a plain one stands in otherwise."""

    @property
    def chat_stops(self) -> tuple[str, ...]:
        """Strings that end an answer, beside the model's own end."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, the beginning-of-text id in front where the model has one."""

    def encode_chat(
        self, messages: Sequence[Message], known: Mapping[int, Sequence[int]] | None = None
    ) -> list[int]:
        """Ids of a conversation, ready for the next answer.

        `known` holds the ids that answers were generated with, by the number of their message.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""


class Engine(Protocol):
    """An open model: one generation at a time; `cancel` may be called from any thread."""

    @property
    def info(self) -> ModelInfo: ...  # noqa: D102
    @property
    def plan(self) -> Plan: ...  # noqa: D102
    @property
    def tokenizer(self) -> EngineTokenizer | None: ...  # noqa: D102

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        on_prefill: OnPrefill | None = None,
        *,
        telemetry: bool = True,
        answer: int = 0,
    ) -> EngineGeneration:
        """Continue `ids`; the last `answer` of them are an answer that was stopped and goes on."""

    def cancel(self) -> None:
        """End the running generation within a layer."""

    def close(self) -> None:
        """Stop, and give the memory back."""

    def cautions(self) -> list[str]:
        """What makes this machine slower than it could be, in sentences; empty when all is well."""

    def io_report(self) -> dict[str, Any]:
        """How the bundles are read: direct or not, how many at a time and by what, and why so."""

    def rates(self) -> DeviceRates:
        """What this device and machine can give, as far as a profile knows."""

    def neuron_map(self) -> NeuronMap | None:
        """What is in DRAM, and what the last token did with it; None where nobody knows yet."""
