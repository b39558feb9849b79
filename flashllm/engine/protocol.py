"""The engine's interface for the chat and `run`: typing only, nothing is loaded.

The engine in this process (`local.Model`), the one in a process of its own (`process.client`) and
scripted ones for tests are interchangeable behind these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack

from flashllm.options import DEFAULT_REASONING, ReasoningOptions
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
"""Called with the prompt's tokens done, and all that are to be read, without cached ones."""


@dataclass(frozen=True, slots=True)
class OpeningProgress:
    """Progress of opening a model: the phase, bytes done, and all bytes.

    `total` is 0 if unknown.
    """

    phase: str
    done: int = 0
    total: int = 0


OnOpening = Callable[[OpeningProgress], None]
"""Called with the progress, from any thread."""


class EngineWait(NamedTuple):
    """What an engine waits for at this moment, in seconds; 0 where it does not."""

    disk_seconds: float = 0.0
    """So long the wait for reads has lasted that is under way."""
    silent_seconds: float = 0.0
    """So long the engine's process has answered no question."""


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate`; `local.Model.generate` has their meanings and defaults."""

    max_tokens: int
    sampling: Sampling | None
    stop: Sequence[str]
    telemetry: bool
    answer: int
    reuse_answers: bool


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
        """Whether the model came with one; otherwise a plain one is used."""

    @property
    def reasoning_variables(self) -> frozenset[str]:
        """The variables of reasoning that the chat template reads, by their names in `options`."""

    @property
    def chat_stops(self) -> tuple[str, ...]:
        """Strings that end an answer, besides the model's own end."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, after the beginning-of-text id if the model has one."""

    def encode_chat(
        self,
        messages: Sequence[Message],
        known: Mapping[int, Sequence[int]] | None = None,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
    ) -> list[int]:
        """Ids of a conversation, ready for the next answer.

        `known` has the ids that answers were generated with, by message number; `reasoning` is what
        the template is told, if it reads that.
        """

    def encode_answer(self, text: str, prompt: Sequence[int] = ()) -> list[int]:
        """Ids of the beginning of an answer, to go behind a prompt."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""


class PromptModel(Protocol):
    """What makes ids of prompts: a model, here or elsewhere."""

    @property
    def info(self) -> ModelInfo: ...  # noqa: D102
    @property
    def plan(self) -> Plan: ...  # noqa: D102
    @property
    def has_tokenizer(self) -> bool: ...  # noqa: D102
    @property
    def tokenizer(self) -> EngineTokenizer:
        """The model's tokenizer; `NoTokenizer` if it came without one."""


class Engine(PromptModel, Protocol):
    """An open model: one generation at a time; `cancel` may be called from any thread.

    `EngineBusy` if a generation is started while another one is neither over nor closed.
    """

    @property
    def wants_quick_profile(self) -> bool:
        """Whether a quick profile would tell of the model's disk what nobody has measured yet."""

    def generate(
        self,
        ids: Sequence[int],
        /,
        *,
        on_prefill: OnPrefill | None = None,
        **options: Unpack[GenerateOptions],
    ) -> EngineGeneration:
        """Continue `ids`, the last `answer` of which are a stopped answer."""

    def release_slots(self, nbytes: int) -> int:
        """Give `nbytes` of memory in slots back, in all; returns what is given back by now."""

    def warm_up(self) -> float:
        """Read a little ahead, where all neurons fit; the share of them, 1.0 at the end."""

    def keep_context(self) -> bool:
        """Keep a little of the context on flash, if that was asked for; whether more is left."""

    def cancel(self) -> None:
        """End the running generation within a layer."""

    def close(self) -> None:
        """Stop, and free the memory."""

    def cautions(self) -> list[str]:
        """Sentences about what makes this machine slower than it could be; may be empty."""

    def io_report(self) -> dict[str, Any]:
        """How bundles are read: directly or not, how many at a time, by which back-end, and why."""

    def rates(self) -> DeviceRates:
        """What this device and machine can give, as far as a profile knows."""

    def renew_rates(self) -> DeviceRates:
        """The same by the profile that is kept now; it may have been measured meanwhile."""

    def current_wait(self) -> EngineWait:
        """What the engine waits for at this moment; from any thread, and at once."""

    def neuron_map(self) -> NeuronMap | None:
        """Which neurons are in DRAM, and which the last token used or read; None if unknown."""
