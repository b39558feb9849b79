"""What can be changed while one chats: how answers are made, how the model is opened, the theme."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from flashllm.engine.sampling import Sampling
from flashllm.options import DEFAULT_REASONING, ReasoningOptions
from flashllm.ui.chat import messages
from flashllm.ui.commands.setting_values import ChatValues

if TYPE_CHECKING:
    from flashllm.ui.chat.conversation_view import ConversationView
    from flashllm.ui.widgets.owner import Owner


class AnswerSettings:
    """The settings of the next answer, the theme, and the limits of the model that is open.

    `owner` gets `SettingsChanged`, and `LimitsAsked` where the model is to be opened with others.
    `given` names those of the command line, which no conversation that is opened changes.
    """

    def __init__(
        self,
        owner: Owner,
        view: ConversationView,
        sampling: Sampling | None,
        max_tokens: int,
        given: Collection[str] = (),
        reasoning: ReasoningOptions = DEFAULT_REASONING,
    ) -> None:
        self.sampling = sampling or Sampling()
        self.reasoning = reasoning
        self.max_tokens = max_tokens
        self.theme = ""
        """Not kept with a conversation: the terminal decides what can be read."""
        self.given = given
        self.memory: int | None = None
        self.context: int | None = None
        """The ceiling and the context that the model was asked to be opened with, last."""
        self._owner = owner
        self._view = view
        view.saving.settings = self.values.kept()

    @property
    def values(self) -> ChatValues:
        """All of them, as they are."""
        system = self._view.conversation.system
        return ChatValues(
            system,
            self.sampling,
            self.max_tokens,
            self.theme,
            self.memory,
            self.context,
            self.reasoning,
        )

    def apply(self, values: ChatValues) -> None:
        """The next answer is made with these; they are kept with the conversation."""
        self._take(values)
        self.theme = values.theme
        self._view.conversation.system = values.system
        self._view.saving.settings = values.kept()
        self._view.saving.head(system=values.system)
        self._owner.post_message(messages.SettingsChanged())
        if values.limits != (self.memory, self.context):
            self._owner.post_message(messages.LimitsAsked(*values.limits))

    def adopt(self) -> None:
        """A conversation that was opened goes on with its own settings, but for those given."""
        saving = self._view.saving
        values = self.values.adopting(saving.settings, self.given)
        self._take(values)
        saving.settings = values.kept()

    def _take(self, values: ChatValues) -> None:
        self.sampling, self.max_tokens = values.sampling, values.max_tokens
        self.reasoning = values.reasoning

    def keep_given(self, system: str) -> None:
        """The conversation that was asked for gets the system prompt that was given with it."""
        if "system" in self.given:
            self.apply(self.values.with_text("system", system))
