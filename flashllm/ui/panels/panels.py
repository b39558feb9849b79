"""The panels beside the conversation: where time and bytes go, which neurons are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.timer import Timer

from flashllm.ui.panels.answer_tokens import AnswerTokens
from flashllm.ui.panels.io_panel import IoPanel
from flashllm.ui.panels.neuron_map import NeuronMapView

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.costs import PrefillCost
    from flashllm.telemetry.device_rates import DeviceRates
    from flashllm.telemetry.token_record import EngineToken
    from flashllm.telemetry.token_report import TokenNumbers

MAP_SECONDS = 0.25
TOKENS_SHOWN = 60
"""Of the last answer, when the panel is opened after it."""


class SidePanels:
    """What is hidden costs nothing: no numbers are worked out, no map is asked for."""

    def __init__(self, show_io: bool) -> None:
        self.io = IoPanel(id="io")
        self.map = NeuronMapView(id="map")
        self.tokens = AnswerTokens()
        self.is_answering = False
        """Whether the map may change; the screen sets it."""
        self.io.display = show_io
        self.map.display = False
        self._engine: Engine | None = None
        self._opened: tuple[str, Plan, DeviceRates] | None = None
        """Of the last model that was open: where it is, and what its tokens' numbers go by."""
        self._timer: Timer | None = None
        self._prefill: PrefillCost | None = None
        self._prompts: dict[int, dict[int, int]] = {}
        """Of answers by turn: places of tokens that came with a prompt, and how long it was."""

    def show_opened(self, engine: Engine) -> None:
        """Another model is open; the numbers of the one before are beside its own rates alone."""
        directory = engine.info.directory
        if self._opened is not None and self._opened[0] != directory:
            self.tokens.clear()
        self._engine, self._opened = engine, (directory, engine.plan, engine.rates())
        self.io.show_plan(*self._opened[1:])
        if self._timer is None:
            self._look()

    def renew_rates(self, engine: Engine, rates: DeviceRates) -> bool:
        """The rates of the open model are known better now; False if it is another by now."""
        if engine is not self._engine or self._opened is None:
            return False
        directory, plan, _ = self._opened
        self._opened = directory, plan, rates
        if self.io.display:
            self._show_last()
        return True

    def show_closed(self) -> None:
        """No model is open."""
        self._engine = None
        self.map.show(None)

    def show_tokens(
        self, turn_id: int, tokens: Sequence[EngineToken], prefill: PrefillCost | None
    ) -> None:
        """Tokens of the answer `turn_id` have come; `prefill`: what its last prompt cost."""
        self.tokens.add(turn_id, tokens)
        self._note_prompt(turn_id, len(tokens), prefill)
        if self.io.display:
            self._feed(turn_id, len(tokens))
        if self.map.display and self._timer is None:
            self._timer = self.map.set_timer(MAP_SECONDS, self._look)

    def toggle_io(self) -> None:
        """Shows or hides where the time and the bytes go."""
        self.io.display = not self.io.display
        self._share_room()
        if self.io.display and self.tokens.turns:
            self._show_last()

    def toggle_map(self) -> None:
        """Shows or hides the map of neurons."""
        self.map.display = not self.map.display
        self._share_room()
        if self._timer is None:
            self._look()

    def numbers(self, turn_id: int) -> list[TokenNumbers]:
        """Of the tokens of an answer, as far as they are kept."""
        return self._numbers(turn_id, len(self.tokens.of(turn_id)))

    def _show_last(self) -> None:
        """What the panel shows of the last answer, anew."""
        if self._opened is None:
            return
        self.io.show_plan(*self._opened[1:])
        if turns := self.tokens.turns:
            self._feed(turns[-1], TOKENS_SHOWN)

    def _note_prompt(self, turn_id: int, count: int, prefill: PrefillCost | None) -> None:
        """Whether the first of the last `count` tokens of an answer came with a prompt."""
        if count and prefill is not None and prefill is not self._prefill:
            self._prefill = prefill
            place = len(self.tokens.of(turn_id)) - count
            before = self._prompts.get(turn_id, {}) if place else {}
            kept = set(self.tokens.turns)
            self._prompts = {turn: own for turn, own in self._prompts.items() if turn in kept}
            self._prompts[turn_id] = {**before, place: prefill.tokens}

    def _share_room(self) -> None:
        """Two of them take less each, so that something is left for the conversation."""
        both = self.io.display and self.map.display
        self.io.set_class(both, "-both")
        self.map.set_class(both, "-both")

    def _feed(self, turn_id: int, count: int) -> None:
        if self._prefill is not None:
            self.io.show_prefill(self._prefill)
        for numbers in self._numbers(turn_id, count):
            self.io.show_token(numbers)

    def _numbers(self, turn_id: int, count: int) -> list[TokenNumbers]:
        from flashllm.telemetry.token_report import (
            answer_numbers,  # all that the first frame does without
        )

        if self._opened is None:
            return []
        _, plan, rates = self._opened
        tokens = self.tokens.of(turn_id)
        begin = max(len(tokens) - count, 0)
        return answer_numbers(tokens, rates, plan, self._prompts.get(turn_id, {0: 0}), begin)

    def _look(self, again: int = 1) -> None:
        # An engine in another process gives the last map that came, and asks for the next one.
        self._timer = None
        if not self.map.display or self._engine is None:
            return
        found = self._engine.neuron_map()
        self.map.show(found)
        changes = found is None or self.is_answering
        if changes or again:
            left = 1 if changes else again - 1
            self._timer = self.map.set_timer(MAP_SECONDS, lambda: self._look(left))
