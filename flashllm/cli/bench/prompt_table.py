"""The report of `flashllm bench prompt` for people."""

from __future__ import annotations

from typing import Any

from flashllm.cli.bench.tokens_table import describe_run
from flashllm.cli.shared.output import table
from flashllm.text_table import columns
from flashllm.units import format_bytes_moved, format_number, format_rate, format_seconds

HEADINGS = (
    "prompt of", "slots", "first token", "least", "most", "tokens/s", "read", "bound", "by",
    "bound ÷ time",
)  # fmt: skip
OWN_HEADING, ALL_HEADING = "by own rows", "of all weights"
KINDS = {"cold": "empty", "warm": "as left"}


def report_table(report: dict[str, Any]) -> str:
    """What was measured, a line for each length and kind, and the rates of the bound."""
    settings, rates = report["header"]["settings"], report["rates"]
    prompts = "random tokens" if settings["text"] is None else f"from {settings['text']}"
    neurons = ", selected neurons" if settings["through_selected"] else ""
    setting = (
        f"prompts: {prompts}, {settings['runs']} of each{neurons}; chunks of"
        f" {settings['chunk_tokens']}"
    )
    about = table(describe_run(report, setting))
    if not report["prompts"]:
        return f"{about}\nnothing was measured\n"
    own = rates["own_products_per_second"]
    headings = HEADINGS if own is None else (*HEADINGS, OWN_HEADING)
    if report["prompts"][0]["all_weights_share"] is not None:
        headings = (*headings, ALL_HEADING)
    rows = columns([headings, *map(_row, report["prompts"])], left=2)
    flash = rates["flash_bytes_per_second"]
    problem = settings["flash_problem"]
    measured = [
        ("rates", "measured in this run"),
        ("  flash", f"unknown: {problem}" if flash is None else format_rate(flash)),
        ("  DRAM", format_rate(rates["dram_bytes_per_second"])),
        ("  products", f"{format_rate(rates['resident_products_per_second'])} × tokens of"
         f" attention, {format_rate(rates['bundle_products_per_second'])} of feed-forward weights"),
    ]  # fmt: skip
    if own is not None:
        measured.append(("  own rows", f"{format_rate(own)} × tokens of rows that each has alone"))
    return f"{about}\n{rows}\n{table(measured)}"


def _row(prompt: dict[str, Any]) -> list[str]:
    took = prompt["first_token_ns"]
    beside = prompt["own_share"], prompt["all_weights_share"]
    return [
        f"{prompt['tokens']:,}",
        KINDS[prompt["kind"]],
        format_seconds(took["median"]),
        format_seconds(took["min"]),
        format_seconds(took["max"]),
        format_number(prompt["tokens_per_second"]),
        format_bytes_moved(prompt["bytes_read"]),
        format_seconds(prompt["bound_ns"]),
        prompt["binds"],
        f"{prompt['bound_share']:.0%}",
        *(f"{share:.0%}" for share in beside if share is not None),
    ]
