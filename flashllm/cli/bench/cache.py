"""`flashllm bench cache`: policies of what stays in memory, replayed on a recorded trace."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.shared import open_model
from flashllm.cli.shared.output import Output, Ticker
from flashllm.cli.shared.texts import read_id_passages
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.bench.cache.replay import Budget, Replay
    from flashllm.bench.cache.traces import Trace
    from flashllm.options import Select

DEMO_TEXT = "heldout.jsonl"
SHARES = [0.1, 0.2, 0.35, 0.5]


def bench_cache(arguments: argparse.Namespace) -> int:
    """Records or loads the trace, replays it, prints the table or one JSON object."""
    from flashllm.bench.cache import replay as cache_replay
    from flashllm.flash.store import Store
    from flashllm.planning.model_facts import recorded_activity

    directory = open_model.model_directory(arguments.model)
    trace = _trace(arguments, directory)
    with Store(directory) as store:
        spec = store.spec
        if (spec.bundled_layers, store.header.bundles_per_layer) != (
            len(trace.sets),
            trace.n_bundles,
        ):
            raise UsageError(
                f"{arguments.trace}: is of {trace.model}, which has other layers than {directory};"
                " give the model that it was recorded of, or another --trace FILE"
            )
        activity = recorded_activity(store, trace.select)
    replay = cache_replay.Replay(trace, activity)
    budgets = _budgets(arguments, directory, trace, replay)
    found = cache_replay.report(trace, budgets)
    output = Output()
    if arguments.json:
        output.json(found)
    else:
        output.write(cache_replay.table(found))
    return 0


def _budgets(
    arguments: argparse.Namespace, directory: Path, trace: Trace, replay: Replay
) -> list[Budget]:
    shares = arguments.slots or ([] if arguments.memory else SHARES)
    slots = [replay.budget(share) for share in sorted(set(shares))]
    if arguments.memory:
        slots.append(_planned(arguments, directory, trace.select))
    ticker = Ticker()
    try:
        return [replay.run(one, functools.partial(_show, ticker, sum(one))) for one in slots]
    finally:
        ticker.clear()


def _planned(arguments: argparse.Namespace, directory: Path, select: Select) -> list[int]:
    """Slots of each layer under the ceiling that was given."""
    from flashllm.engine.loading import model_sizes
    from flashllm.flash.store import Store
    from flashllm.hardware.staleness import find_profile
    from flashllm.options import ModelOptions
    from flashllm.planning.plan import make_plan

    with Store(directory) as store:
        plan = make_plan(
            store.spec,
            model_sizes(store, select),
            ModelOptions(memory=arguments.memory, select=select, context=arguments.ctx_size),
            find_profile(directory),
        )
    return list(plan.slots_per_layer)


def _trace(arguments: argparse.Namespace, directory: Path) -> Trace:
    from flashllm.bench.cache import traces

    path = arguments.trace
    if path is not None and path.exists():
        if arguments.text is not None:
            raise UsageError(
                f"--text: {path} is there already and is replayed; give another --trace FILE, or"
                " no --text"
            )
        return traces.load(path)
    passages = _passages(arguments, directory)
    total, done, ticker = sum(map(len, passages)), 0, Ticker()

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        ticker.show(f"recording: {done:,} of {total:,} tokens")

    try:
        trace = traces.record(directory, passages, arguments.select, report)
    finally:
        ticker.clear()
    if path is not None:
        traces.save(trace, path)
    return trace


def _passages(arguments: argparse.Namespace, directory: Path) -> list[list[int]]:
    """Token ids of the text asked for; for a demo alone, of what comes with it."""
    path = arguments.text
    if path is None:
        demo = open_model.demo_folder(arguments.model, directory)
        if demo is None:
            raise UsageError("there is no text to record; give --text FILE (.ids, .txt or .jsonl)")
        path = demo / DEMO_TEXT
    return read_id_passages(path, directory, arguments.tokens)


def _show(ticker: Ticker, slots: int, row: str) -> None:
    ticker.show(f"{slots:,} slots: {row}")
