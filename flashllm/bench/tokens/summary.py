"""Computes the figures of `flashllm bench tokens` from its samples.

Rates are medians over the runs; percentiles are over the tokens of all warm runs. All figures can
be computed again from the lines of `--jsonl`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from flashllm.bench.sample_statistics import percentiles, spread
from flashllm.bench.tokens.machine_rates import last_cache_bytes
from flashllm.bench.tokens.samples import COLD, WARM, ProbeSample, RunSample, Sample
from flashllm.bench.tokens.telemetry_cost import same_tokens, telemetry_cost
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.engine.local import Model
from flashllm.planning.cost_model import DramBytes, ResidentBytes, dram_bytes_a_token
from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import TokenCost, decode_summary, ratio
from flashllm.telemetry.roofline import Bound, active_bundles

CLOSES_WITHIN = 0.02
"""Tolerances: of the parts against the wall time, and of reported bytes against the kernel's."""
BYTES_WITHIN = 0.01
SLACK_BYTES = 1 << 20
"""Bytes that this process may have read besides, such as a Python module."""


def summarize(model: Model, samples: Sequence[Sample], opening_ns: int) -> dict[str, Any]:
    """The `summary` of a report; without warm runs, of the others.

    Incomplete runs contribute tokens, but no rates if there are complete runs.
    """
    runs = [sample for sample in samples if isinstance(sample, RunSample)]
    probes = [sample for sample in samples if isinstance(sample, ProbeSample)]
    cold = [run for run in runs if run.kind == COLD]
    warm = [run for run in runs if run.kind == WARM and run.tokens]
    measured = warm or [run for run in cold if run.tokens]
    summary: dict[str, Any] = {
        "opening_ns": opening_ns,
        "cold": _cold(cold[0], opening_ns) if cold else None,
        "measured": WARM if warm else COLD,
        "prefill": _prefill([run for run in measured if run.prefill is not None]),
        "decode": _decode(measured),
        "steady": _steady(measured, model.plan.window, model.plan.select),
        "parts": _parts(measured),
        "flash": _flash(measured),
        "cache": _cache(model, measured),
        "process": _process(measured),
        "stolen_share": spread([r.stolen_share for r in runs if r.stolen_share is not None]),
        "device_bytes": _device_bytes(runs, bool(model.io_report()["direct"])),
        "memory": _memory(model, runs),
        "bound": bound_report(model, measured, probes),
        "telemetry": telemetry_cost(runs),
        "same_tokens": same_tokens(runs),
    }
    return summary


def _cold(run: RunSample, opening_ns: int) -> dict[str, Any]:
    return {
        "first_token_ns": run.first_token_ns,
        "opening_to_first_token_ns": opening_ns + run.first_token_ns,
        "tokens": len(run.tokens),
        "ns_per_token": ratio(run.decode_ns, len(run.tokens)),
        "tokens_per_second": ratio(len(run.tokens) * 1e9, run.decode_ns),
    }


def _prefill(runs: Sequence[RunSample]) -> dict[str, Any] | None:
    if not runs:
        return None
    costs = [run.prefill for run in runs if run.prefill is not None]
    first = [float(run.first_token_ns) for run in runs]
    tokens = runs[0].tokens[0].context_tokens
    return {
        "tokens": tokens,
        "first_token_ns": spread(first),
        "tokens_per_second": spread([tokens * 1e9 / ns for ns in first]),
        "bytes_read": statistics.median(cost.bytes_read for cost in costs),
        "parts_ns": {part: statistics.fmean(c.parts_ns[part] for c in costs) for part in PARTS},
    }


def _decode(runs: Sequence[RunSample]) -> dict[str, Any]:
    rated = [run for run in runs if run.complete] or list(runs)
    means = [run.decode_ns / len(run.tokens) for run in rated]
    return {
        "runs": len(rated),
        "tokens": sum(len(run.tokens) for run in runs),
        "ns_per_token": spread(means),
        "tokens_per_second": spread([1e9 / mean for mean in means]),
        "token_ns": percentiles([token.wall_ns for run in runs for token in run.tokens]),
    }


def _steady(runs: Sequence[RunSample], window: int, select: str) -> dict[str, Any]:
    """Tokens after the first `window` ones of each run; all, if there are none."""
    first = 0 if select == "all" else window
    walls = [token.wall_ns for run in runs for token in run.tokens if token.index >= first]
    means = [
        statistics.fmean(walls_of)
        for run in runs
        if (walls_of := [t.wall_ns for t in run.tokens if t.index >= first])
    ]
    return {
        "from_token": first,
        "tokens": len(walls),
        "ns_per_token": spread(means),
        "tokens_per_second": spread([1e9 / mean for mean in means]),
        "token_ns": percentiles(walls),
    }


def _parts(runs: Sequence[RunSample]) -> dict[str, Any]:
    costs = _costs(runs)
    wall_ns = sum(run.decode_ns for run in runs)
    spent = {part: sum(cost.parts_ns[part] for cost in costs) for part in PARTS}
    share = ratio(sum(spent.values()), wall_ns)
    return {
        "ns_per_token": {part: ratio(spent[part], len(costs)) for part in PARTS},
        "shares": {part: ratio(spent[part], wall_ns) for part in PARTS},
        "sum_share": share,
        "closes": abs(share - 1) <= CLOSES_WITHIN,
    }


def _flash(runs: Sequence[RunSample]) -> dict[str, Any]:
    costs = _costs(runs)
    sums = decode_summary(costs)
    hidden_ns = sum(cost.io_hidden_ns for cost in costs)
    wasted = sums["guessed"] - sums["guesses_used"]
    return {
        "bytes_read_per_token": ratio(sums["bytes_read"], len(costs)),
        "bytes_useful_per_token": ratio(sums["bytes_useful"], len(costs)),
        "amplification": ratio(sums["bytes_read"], sums["bytes_useful"], empty=1.0),
        "reads_per_token": ratio(sums["reads"], len(costs)),
        "read_bytes_mean": ratio(sums["bytes_read"], sums["reads"]),
        "bundles_per_read": ratio(sums["misses"] + wasted, sums["reads"]),
        "read_sizes": sums["read_sizes"],
        "queue_depth_mean": sums["queue_depth_mean"],
        "queue_depth_max": sums["queue_depth_max"],
        "bytes_per_second": sums["io_bytes_per_second"],
        "busy_ns_per_token": ratio(sums["io_busy_ns"], len(costs)),
        "hidden_ns_per_token": ratio(hidden_ns, len(costs)),
        "retries": sum(run.reader.retries for run in runs),
        "short_reads": sum(run.reader.short_reads for run in runs),
        "bounced": sum(run.reader.bounced for run in runs),
        "downgrades": sum(run.reader.downgrades for run in runs),
        "bundles_verified": sum(run.reader.bundles_verified for run in runs),
        "bundles_mismatched": sum(run.reader.bundles_mismatched for run in runs),
        "latency_ns": Latencies.merge(run.latencies for run in runs).to_json(),
    }


def _cache(model: Model, runs: Sequence[RunSample]) -> dict[str, Any]:
    costs = _costs(runs)
    sums, tokens = decode_summary(costs), len(costs)
    return {
        "window": model.plan.window,
        "slots": sum(model.plan.slots_per_layer),
        "needed_per_token": ratio(sums["hits"] + sums["misses"], tokens),
        "hits_per_token": ratio(sums["hits"], tokens),
        "loaded_per_token": ratio(sums["misses"], tokens),
        "hit_rate": sums["hit_rate"],
        "passes": sums["passes"],
        "spilled": sums["spilled"],
        "overlap": model.plan.overlap,
        "guessed_per_token": ratio(sums["guessed"], tokens),
        "guesses_used": ratio(sums["guesses_used"], sums["guessed"]),
        "guess_bytes_wasted_per_token": ratio(sums["guess_bytes_wasted"], tokens),
        "neurons_per_token": ratio(sums["neurons"], tokens),
        "neurons_silent_per_token": ratio(sums["neurons_silent"], tokens),
    }


def _process(runs: Sequence[RunSample]) -> dict[str, Any]:
    tokens = sum(len(run.tokens) for run in runs)
    counts = [run.process for run in runs]
    return {
        "major_faults": sum(count.major_faults for count in counts),
        "voluntary_switches_per_token": ratio(sum(c.voluntary_switches for c in counts), tokens),
        "involuntary_switches_per_token": ratio(
            sum(c.involuntary_switches for c in counts), tokens
        ),
        "user_ns_per_token": ratio(sum(count.user_ns for count in counts), tokens),
        "system_ns_per_token": ratio(sum(count.system_ns for count in counts), tokens),
    }


def _device_bytes(runs: Sequence[RunSample], direct: bool) -> dict[str, Any]:
    """The reader's bytes compared with the kernel's, around the decodes of all runs."""
    reported = sum(run.reader.bytes_read for run in runs)
    counted = [run.process.device_bytes_read for run in runs]
    known = [count for count in counted if count is not None]
    kernel = sum(known) if len(known) == len(counted) else None
    share = None if kernel is None else ratio(kernel - reported, reported, float(kernel > 0))
    return {
        "reader": reported,
        "kernel": kernel,
        "difference_share": share,
        "agrees": None if share is None or not direct else _agree(reported, kernel or 0),
    }


def _agree(reported: int, kernel: int) -> bool:
    return abs(kernel - reported) <= max(BYTES_WITHIN * reported, SLACK_BYTES)


def _memory(model: Model, runs: Sequence[RunSample]) -> dict[str, Any]:
    peaks = [run.rss_peak_bytes for run in runs if run.rss_peak_bytes is not None]
    peak, ceiling = max(peaks, default=None), model.plan.ceiling_bytes
    return {
        "ceiling_bytes": ceiling,
        "rss_peak_bytes": peak,
        "within_ceiling": None if peak is None else peak <= ceiling,
        "split": dict(model.plan.split),
    }


def bound_report(
    model: Model, runs: Sequence[RunSample], probes: Sequence[ProbeSample]
) -> dict[str, Any] | None:
    """The bound of a token, compared with the time that a token took; None without a probe."""
    rated = [run for run in runs if run.complete] or list(runs)
    if not probes or not rated:
        return None
    dram = dram_of(model, runs)
    flash = [probe.flash_bytes_per_second for probe in probes]
    known = [rate for rate in flash if rate is not None]
    costs = _costs(runs)
    bound = Bound(
        flash_bytes=ratio(sum(cost.bytes_read for cost in costs), len(costs)),
        flash_bytes_per_second=statistics.median(known) if known else None,
        dram_bytes=dram.total,
        dram_bytes_per_second=statistics.median(p.dram_bytes_per_second for p in probes),
        time_ns=statistics.median(run.decode_ns / len(run.tokens) for run in rated),
    )
    whole = [p.flash_all_bytes_per_second for p in probes if p.flash_all_bytes_per_second]
    return bound.to_json() | {
        "read_bytes": statistics.median(probe.read_bytes for probe in probes),
        "depth": statistics.median(probe.depth for probe in probes),
        "flash_rates": spread(known),
        "threads": probes[0].threads,
        "flash_all_rates": spread(whole),
        "dram_threads": probes[0].dram_threads,
        "dram_rates": spread([probe.dram_bytes_per_second for probe in probes]),
        "dram_bytes_by_component": dataclasses.asdict(dram),
        "cached": dram.total <= last_cache_bytes(),
    }


def dram_of(model: Model, runs: Sequence[RunSample]) -> DramBytes:
    """Bytes that the mean decoded token of these runs moved through DRAM."""
    costs, spec = _costs(runs), model.info.spec
    used = ratio(sum(cost.hits + cost.misses for cost in costs), len(costs))
    loaded = ratio(sum(cost.misses for cost in costs), len(costs))
    contexts = [token.context_tokens for run in runs for token in run.tokens]
    resident = ResidentBytes.of(spec, model.plan.split["predictors"])
    return dram_bytes_a_token(
        spec,
        resident,
        used,
        loaded,
        spec.bundle_bytes,
        statistics.fmean(contexts),
        bundles_active=active_bundles(spec, model.plan.select, model.info.activity),
        kv_dtype=model.plan.kv_dtype,
    )


def _costs(runs: Sequence[RunSample]) -> list[TokenCost]:
    return [cost for run in runs for cost in run.costs]
