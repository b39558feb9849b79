"""The report as text, at most 80 columns wide: what matters first, layers last."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashllm.text_table import columns
from flashllm.units import MIB
from flashllm.untrusted.terminal import sanitize_line

WIDTH = 80
WINDOWS_SHOWN = (1, 2, 3, 5, 10, 20, 40, 64)
LONGEST_NUMBER = 1e6

Row = Sequence[str]


def report_table(report: dict[str, Any]) -> str:
    """Everything that was evaluated, a blank line between its parts."""
    parts = [_head(report)]
    text = report.get("text")
    if text is not None:
        parts += _text(text, report["select"])
    parts += [part for tasks in report.get("tasks", ()) for part in _tasks(tasks, report["select"])]
    parts.append(f"{textwrap.fill(summary_text(report), WIDTH - 1)}\n")
    return "\n".join(part for part in parts if part)


def summary_text(report: dict[str, Any]) -> str:
    """What it comes to, in sentences: what the selector costs in quality, and what it saves."""
    sentences = []
    if (text := report.get("text")) is not None:
        sentences += _text_summary(text, report["select"])
    for tasks in report.get("tasks", ()):
        for kind in ("multiple_choice", "generation"):
            if kind in tasks:
                name = sanitize_line(Path(tasks["file"]).name)
                sentences.append(_task_summary(tasks[kind], name, report["select"]))
    return " ".join(sentences)


def _text_summary(text: dict[str, Any], select: str) -> list[str]:
    modes, mean = text["modes"], text.get("mean")
    found = []
    if select in modes and select != "dense":
        ratio = _decimals(modes[select]["ratio"], 4)
        same = f"{modes[select]['same_token']:.1%}"
        found.append(
            f"On {text['tokens_scored']:,} tokens the perplexity is {ratio} of the exact model's,"
            f" and {same} of the likeliest tokens are the same."
        )
    else:
        perplexity = _decimals(modes["dense"]["perplexity"], 4)
        found.append(f"On {text['tokens_scored']:,} tokens the perplexity is {perplexity}.")
    if mean is None:
        why = "No neuron is ever zero, so every token needs all of them."
        if select == "router":
            why = "Each token went through the experts that its routers chose, exactly."
        return [*found, why]
    active = f"{mean['active']:.1%} of the neurons are active"
    if "false_negatives" in mean:
        active += (
            f"; {mean['false_negatives']:.1%} of these are missed, and"
            f" {mean['false_positives']:.1%} of the others are read needlessly (means of the"
            " layers)"
        )
    return [*found, f"{active}."]


def _task_summary(found: dict[str, Any], name: str, select: str) -> str:
    measures = found["measures"]
    values = measures.get("acc_norm") or measures.get("exact") or next(iter(measures.values()))
    words = f"Of {found['questions']:,} questions in {name}, {values['dense']['right']:.1%}"
    if select not in values or select == "dense":
        return f"{words} are answered right."
    right = f"{values[select]['right']:.1%}"
    return f"{words} are answered right with all neurons and {right} with those selected."


def _head(report: dict[str, Any]) -> str:
    shape = f"{report['layers']} layers of {report['neurons_per_layer']:,} neurons"
    policy = report["kv_policy"]
    return _names(
        ("model", f"{report['model']}, {shape}, {report['activation']}"),
        ("select", report["select"] + (" (lossy)" if report["select"] == "predicted" else "")),
        *([] if policy == "full" else [("keys, values", f"as {policy} chooses (lossy)")]),
    )


def _text(text: dict[str, Any], select: str) -> list[str]:
    head = _names(
        ("text", Path(text["file"]).name),
        ("tokens", f"{text['tokens']:,} in {text['passages']:,} passages"),
        ("counted", f"{text['tokens_counted']:,}, of which {text['tokens_scored']:,} scored"),
    )
    parts = [head, _modes(text["modes"])]
    if "mean" in text:
        has_selector = "false_negatives" in text["mean"]
        parts.append(_summary(text["mean"], has_selector))
        parts.append(_windows(text["windows"], select))
        parts.append(_layers(text["layers"], has_selector))
        parts.append(_margins(text["margins"], has_selector))
        parts.append(_friends(text["friends"]))
    return parts


def _modes(modes: dict[str, Any]) -> str:
    rows: list[Row] = [("", "perplexity", "to dense", "stderr", "same token", "KL, nats")]
    for name, found in modes.items():
        beside: Row = (
            _decimals(found["ratio"], 4),
            _decimals(found["ratio_stderr"], 4),
            f"{found['same_token']:.2%}",
            _decimals(max(0.0, found["divergence_nats"]), 5),  # rounding may leave it below 0
        )
        rows.append((name, _decimals(found["perplexity"], 4), *(beside if name != "dense" else ())))
    return columns(rows)


def _summary(mean: dict[str, float], has_selector: bool) -> str:
    rows = [("active", f"{mean['active']:.2%} of the neurons")]
    if has_selector:
        rows += [
            ("selected", f"{mean['chosen']:.2%}"),
            ("false negatives", f"{mean['false_negatives']:.2%} of the active neurons"),
            ("their mass", f"{mean['missed_mass']:.2%} of what the active add up to"),
            ("false positives", f"{mean['false_positives']:.2%} of the inactive neurons"),
        ]
    return "means of the layers:\n" + _names(*rows)


def _windows(windows: dict[str, Any], select: str) -> str:
    """Held and loaded for windows of so many tokens, the selector's first."""
    names = [name for name in dict.fromkeys((select, "oracle")) if name in windows]
    head: list[str] = ["window"]
    for name in names:
        head += [f"{name}: held", "loaded", "bytes/token"]
    rows: list[Row] = [head]
    for window in WINDOWS_SHOWN:
        row = [str(window)]
        for name in names:
            found = windows[name]
            row += [
                f"{found['mean_share_held'][window - 1]:.2%}",
                f"{found['mean_share_loaded'][window - 1]:.2%}",
                _bytes(found["bytes_per_token"][window - 1]),
            ]
        rows.append(row)
    return "what a window of k tokens holds of a layer, and what each token loads into it:\n" + (
        columns(rows)
    )


def _layers(layers: Sequence[dict[str, float]], has_selector: bool) -> str:
    names = ("active", "chosen", "false_negatives", "missed_mass", "false_positives")
    titles = ("active", "selected", "false neg.", "their mass", "false pos.")
    shown = [(n, t) for n, t in zip(names, titles, strict=True) if has_selector or n == "active"]
    rows: list[Row] = [("layer", *(title for _, title in shown))]
    rows += [
        (str(number), *(f"{layer[name]:.2%}" for name, _ in shown))
        for number, layer in enumerate(layers)
    ]
    return columns(rows)


def _margins(margins: Sequence[dict[str, Any]], has_selector: bool) -> str:
    """How far above zero neurons were that were active, and those of them that were missed."""
    kinds = [("active", "active")] + [("false_negatives", "missed")] * has_selector
    head = ["layer"]
    for _, title in kinds:
        head += [f"{title}: 10%", "50%", "90%"]
    rows: list[Row] = [head]
    for number, layer in enumerate(margins):
        row = [str(number)]
        for kind, _ in kinds:
            row += [_number(layer[kind]["quantiles"][name]) for name in ("q10", "q50", "q90")]
        rows.append(row)
    missed = ", and of those missed" if len(kinds) > 1 else ""
    return f"pre-activations of neurons that were active{missed}, quantiles:\n{columns(rows)}"


def _friends(friends: Sequence[dict[str, Any]]) -> str:
    ranks = list(friends[0]["rank"])
    rows: list[Row] = [
        ("layer", *(f"{_ordinal(rank)}" for rank in ranks), "same closest", "distinct", "of")
    ]
    for number, layer in enumerate(friends):
        most = layer["closest_most"]
        rows.append(
            (
                str(number),
                *(_share(spread and spread["mean"]) for spread in layer["rank"].values()),
                _share(most),
                "-" if most is None else str(layer["closest_distinct"]),
                str(layer["looked_at"]),
            )
        )
    return "how often a neuron's closest friends are active with it, means of a sample:\n" + (
        columns(rows)
    )


def _tasks(tasks: dict[str, Any], select: str) -> list[str]:
    asked, of_all = tasks["questions"], tasks["questions_in_file"]
    counted = f"{asked:,}" if asked == of_all else f"{asked:,} of {of_all:,}"
    parts = [_names(("tasks", f"{Path(tasks['file']).name}, {counted} questions"))]
    for kind, title in (("multiple_choice", "choice"), ("generation", "answer")):
        if kind in tasks:
            parts.append(_outcomes(tasks[kind], title, select))
    return parts


def _outcomes(found: dict[str, Any], title: str, select: str) -> str:
    rows: list[Row] = [(title, "asked", "dense, %", f"{select}, %", "difference", "same")]
    measured = [("all", found), *found.get("groups", {}).items()]
    for name, part in measured:
        for measure, values in part["measures"].items():
            label = name if measure == "exact" else f"{name} {measure}"
            rows.append(_outcome(sanitize_line(label)[:24], part["questions"], values, select))
    if all(len(row) < len(rows[0]) for row in rows[1:]):  # nothing to lay beside the dense
        rows[0] = rows[0][:3]
    return columns(rows)


def _outcome(label: str, questions: int, values: dict[str, Any], select: str) -> Row:
    row = [label, f"{questions:,}", _right(values["dense"])]
    if select in values:
        error = values["difference_stderr"]
        row += [
            _right(values[select]),
            f"{100 * values['difference']:+.1f} ± {100 * error:.1f}",
            f"{values['same_answer']:.1%}",
        ]
    return row


def _right(share: dict[str, float]) -> str:
    return f"{100 * share['right']:.1f} ± {100 * share['stderr']:.1f}"


def _names(*rows: tuple[str, str]) -> str:
    """Names and values in two columns."""
    width = max(8, *(len(name) + 2 for name, _ in rows))
    lines = [f"{name:<{width}}{sanitize_line(value)}" for name, value in rows]
    return "".join(f"{ln if len(ln) <= WIDTH else ln[: WIDTH - 1] + '…'}\n" for ln in lines)


def _bytes(nbytes: float) -> str:
    return f"{nbytes / MIB:.2f} MiB" if nbytes >= MIB else f"{nbytes / 1024:.1f} KiB"


def _decimals(value: float, digits: int) -> str:
    """With so many digits after the point; what is too long for a column by its magnitude."""
    return f"{value:.{digits}f}" if value < LONGEST_NUMBER else f"{value:.4g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _ordinal(rank: str) -> str:
    return rank + {"1": "st", "2": "nd", "3": "rd"}.get(rank, "th")
