"""What the answers of a batch cost: sums over rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flashllm.system.memory import rss_peak_bytes
from flashllm.telemetry.costs import decode_summary, merged_summary, ratio
from flashllm.telemetry.formatting import format_parts
from flashllm.telemetry.token_report import (
    decode_rows,
    decoded_traffic,
    format_prompt_cost,
    memory_rows,
)
from flashllm.units import format_bytes_moved, format_count, format_seconds, format_token_count

if TYPE_CHECKING:
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.device_rates import DeviceRates, MeasuredTraffic


class BatchCosts:
    """Sums of the reports of answers."""

    def __init__(self) -> None:
        self.answers = 0
        self.completion_tokens = 0
        self.prefill = {"tokens": 0, "reused_tokens": 0, "wall_ns": 0, "bytes_read": 0}
        self.decode: dict[str, Any] = decode_summary([])
        self.kv_tokens_peak = 0
        """The most tokens whose keys and values were held at once; 0 of rows one by one."""
        self._context_tokens = 0.0

    def add(self, report: Mapping[str, Any]) -> None:
        """Adds an answer, by the report of its generation."""
        decode = report["decode"]
        self.answers += 1
        self.completion_tokens += len(report["tokens"])
        for name in self.prefill:
            self.prefill[name] += report["prefill"][name]
        self.decode = merged_summary(self.decode, decode)
        self._context_tokens += decode["tokens"] * (report["prompt_tokens"] + decode["tokens"] / 2)

    def merge(self, other: BatchCosts) -> None:
        """Adds the sums of others."""
        self.answers += other.answers
        self.completion_tokens += other.completion_tokens
        for name in self.prefill:
            self.prefill[name] += other.prefill[name]
        self.decode = merged_summary(self.decode, other.decode)
        self.kv_tokens_peak = max(self.kv_tokens_peak, other.kv_tokens_peak)
        self._context_tokens += other._context_tokens

    @property
    def bytes_per_token(self) -> float:
        """Bytes read for each token of the answers, those for prompts included."""
        nbytes = self.prefill["bytes_read"] + self.decode["bytes_read"]
        return ratio(nbytes, self.completion_tokens)

    @property
    def traffic(self) -> MeasuredTraffic:
        """What the tokens that were decoded moved."""
        return decoded_traffic(self.decode, ratio(self._context_tokens, self.decode["tokens"]))

    def rows(self, rates: DeviceRates | None, plan: Plan) -> list[tuple[str, str]]:
        """Names and texts for people, as `run --stats` has them of one answer.

        Without rates nothing is compared with what the machine allows.
        """
        rows = [("prompts", format_prompt_cost(self.prefill["tokens"], self.prefill))]
        if tokens := self.decode["tokens"]:
            time = format_seconds(self.decode["wall_ns"])
            each = format_seconds(self.decode["wall_ns"] / tokens)
            answers = format_token_count(self.completion_tokens)
            rows += [
                ("answers", f"{answers}; {format_count(tokens)} decoded in {time}: {each} each"),
                ("read", f"{format_bytes_moved(self.bytes_per_token)} a token, prompts included"),
            ]
            if rates is not None:
                rows += decode_rows(self.decode, rates, plan, self.traffic)
            else:
                rows.append(("time", format_parts(self.decode["parts_ns"].items())))
        return [*rows, *memory_rows(rss_peak_bytes(), plan)]
