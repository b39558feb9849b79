"""What the driver has of a model: enough to make ids of rows, and no weights."""

from __future__ import annotations

from pathlib import Path

from flashllm.errors import NoTokenizer
from flashllm.flash.opening_errors import opening_errors
from flashllm.flash.store import Store
from flashllm.planning.model_info import ModelInfo, describe
from flashllm.planning.plan import Plan
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer


class WeightlessModel:
    """A `PromptModel` of a directory, run elsewhere by a plan."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        """`ModelError`, `ReadFailed` for a model that is broken."""
        self.plan = plan
        self._tokenizer = load_tokenizer(directory)
        with opening_errors(directory), Store(directory) as store:
            self.info: ModelInfo = describe(store, self._tokenizer is not None)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model came with a tokenizer; without one, prompts are ids."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; `NoTokenizer` if it came without one."""
        if self._tokenizer is None:
            raise NoTokenizer
        return self._tokenizer
