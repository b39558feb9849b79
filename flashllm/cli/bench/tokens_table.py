"""The report of `flashllm bench tokens` for people: names and values in two columns."""

from __future__ import annotations

import textwrap
from typing import Any

from flashllm.bench.sample_statistics import LEAST_VALUES
from flashllm.cli.shared.output import table
from flashllm.telemetry.formatting import PART_WORDS
from flashllm.telemetry.token_report import format_silent
from flashllm.units import format_bytes, format_memory, format_number

WIDTH = 79
SYNTHETIC = "SYNTHETIC: made-up weights"
_SIZES_SHOWN = 6
Row = tuple[str, Any]


def report_table(report: dict[str, Any]) -> str:
    """All of a report, section by section."""
    summary = report["summary"]
    if not summary["decode"]["tokens"]:
        return table([*_what(report), ("measured", "nothing: no token was decoded")])
    sections = [
        _what(report),
        _time(summary),
        _parts(summary["parts"]),
        _flash(summary),
        _process(summary),
        _bound(summary["bound"], report["header"]["settings"]),
        _checks(report),
    ]
    tables = "\n".join(table(rows) for rows in sections if rows)
    return f"{tables}\n{textwrap.fill(summary_text(report), WIDTH)}\n"


def summary_text(report: dict[str, Any]) -> str:
    """What it comes to, in sentences: time, flash, memory, and what the machine would allow."""
    summary = report["summary"]
    decode, flash, parts = summary["decode"], summary["flash"], summary["parts"]
    begin = "" if report["complete"] else "Until it was interrupted: "
    token = decode["ns_per_token"]
    sentences = []
    if token:
        speed = 1e9 / token["median"]
        part, share = max(parts["shares"].items(), key=lambda item: item[1])
        sentences.append(
            f"{begin}a token took {_seconds(token['median'])}, {format_number(speed)} a second;"
            f" most of it, {share:.0%}, was {PART_WORDS.get(part, part)}."
        )
    noun = "experts" if report["header"]["settings"]["select"] == "router" else "neurons"
    hits = f"{summary['cache']['hit_rate']:.0%} of its {noun} were in memory"
    read = format_bytes(flash["bytes_read_per_token"]) if flash["reads_per_token"] else "nothing"
    sentences.append(f"It read {read} from flash; {hits}.")
    if (bound := summary["bound"]) is not None:
        binds = "" if bound["flash_ns"] is None else f", and {bound['binds']} is the bound"
        sentences.append(f"That is {bound['share']:.0%} of what this machine allows{binds}.")
    if not summary["same_tokens"]:
        sentences.append("The tokens were NOT THE SAME in all runs.")
    text = " ".join(sentences)
    return text[0].upper() + text[1:]


def _what(report: dict[str, Any]) -> list[Row]:
    settings = report["header"]["settings"]
    return describe_run(
        report,
        f"policy {settings['policy']}, window {settings['window']},"
        f" prompt of {settings['prompt_tokens']} tokens, -n {settings['tokens']}",
    )


def describe_run(report: dict[str, Any], setting: str) -> list[Row]:
    """Model, machine, disk, settings and program; `setting` is what only one command has."""
    header = report["header"]
    settings, machine, storage = header["settings"], header["machine"], header["storage"]
    synthetic = f" ({SYNTHETIC})" if header["synthetic"] else ""
    requantised = f" ({words})" if (words := header["model"].get("requantised")) else ""
    lossy = " (lossy)" if settings["lossy"] else ""
    io = f"{settings['io_threads']} threads, {'direct' if settings['direct'] else 'NOT direct'}"
    rows: list[Row] = [
        ("model", header["model"]["name"] + synthetic + requantised),
        ("machine", f"{machine['processor']}, {machine['cpus']} CPUs, {machine['isa']},"
         f" {format_bytes(machine['memory_total_bytes'])}"),
        ("disk", f"{storage['name']} ({storage['kind']}), {storage['filesystem']}; {io}"),
        ("settings", f"{settings['select']}{lossy}, {settings['slots']} slots,"
         f" context {settings['context']} in {settings['kv_dtype']}, {setting}"),
        ("run", f"flashllm {header['tool_version']}{_commit(header)}, {header['date']}"),
    ]  # fmt: skip
    if not report["complete"]:
        rows.append(("INCOMPLETE", "interrupted; what was measured until then"))
    return rows


def _commit(header: dict[str, Any]) -> str:
    git = header["git"]
    return f" ({git['commit'][:10]}{', modified' if git['modified'] else ''})" if git else ""


def _time(summary: dict[str, Any]) -> list[Row]:
    cold, decode, prefill = summary["cold"], summary["decode"], summary["prefill"]
    rows: list[Row] = []
    if cold:
        rows += [
            ("cold", "the first run after opening"),
            ("  opening", _seconds(summary["opening_ns"])),
            ("  first token", f"{_seconds(cold['first_token_ns'])};"
             f" {_seconds(cold['opening_to_first_token_ns'])} from the start of opening"),
            ("  token", f"{_seconds(cold['ns_per_token'])}"),
        ]  # fmt: skip
    name = "warm" if summary["measured"] == "warm" else "measured (cold)"
    rows.append((name, f"{decode['runs']} runs, {decode['tokens']} decoded tokens"))
    if prefill:
        speed = prefill["tokens_per_second"]["median"]
        rows.append(("  first token", _spread(prefill["first_token_ns"])))
        rows.append(
            ("  prefill", f"{speed:,.0f} tokens/s, {format_bytes(prefill['bytes_read'])} read")
        )
    if decode["ns_per_token"]:
        speed = decode["tokens_per_second"]["median"]
        rows.append(("  token", f"{_spread(decode['ns_per_token'])}: {speed:.2f} tokens/s"))
        rows.append(("  percentiles", _percentiles(decode["token_ns"])))
    rows.append(("  steady", _steady(summary["steady"])))
    return rows


def _steady(steady: dict[str, Any]) -> str:
    if not steady["tokens"]:
        return f"not reached: the window is full after {steady['from_token']} decoded tokens"
    after = f", after {steady['from_token']} tokens" if steady["from_token"] else ""
    return f"{_spread(steady['ns_per_token'])}; n = {steady['tokens']}{after}"


def _parts(parts: dict[str, Any]) -> list[Row]:
    rows: list[Row] = [("parts of a token", "")]
    rows += [
        (f"  {part}", f"{ns / 1e6:9.3f} ms  {parts['shares'][part]:6.1%}")
        for part, ns in parts["ns_per_token"].items()
    ]
    word = "" if parts["closes"] else "  DOES NOT CLOSE within 2 %"
    rows.append(("  sum", f"parts sum to {parts['sum_share']:.1%} of wall{word}"))
    return rows


def _flash(summary: dict[str, Any]) -> list[Row]:
    flash, cache = summary["flash"], summary["cache"]
    hits = (
        f"{cache['hit_rate']:.1%} hits: {cache['hits_per_token']:.0f} of"
        f" {cache['needed_per_token']:.0f} bundles a token, {cache['loaded_per_token']:.1f} loaded"
    )
    if not flash["reads_per_token"]:
        return [("flash, a token", "nothing was read"), ("cache", hits)]
    latency, sizes = flash["latency_ns"], flash["read_sizes"]
    downgraded = "; a direct read was refused, all go on buffered" if flash["downgrades"] else ""
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_SIZES_SHOWN]
    shown = sorted((int(size), count) for size, count in largest)
    rows: list[Row] = [
        ("flash, a token", f"{format_bytes(flash['bytes_read_per_token'])} in"
         f" {flash['reads_per_token']:.1f} reads of {format_bytes(flash['read_bytes_mean'])};"
         f" useful {format_bytes(flash['bytes_useful_per_token'])}"),
        ("  amplification", f"{flash['amplification']:.3f} bytes read for a useful one;"
         f" {flash['bundles_per_read']:.2f} bundles a read"),
        ("  read sizes", ", ".join(f"{format_bytes(size)}+ {count}" for size, count in shown)),
        ("  throughput", f"{_rate(flash['bytes_per_second'])} while reading, depth"
         f" {flash['queue_depth_mean']:.1f} (most since opening {flash['queue_depth_max']})"),
        ("  reading", f"{_seconds(flash['busy_ns_per_token'])}, of it"
         f" {_seconds(flash['hidden_ns_per_token'])} behind other work"),
        ("  read latency", _percentiles(latency)),
        ("  trouble", f"{flash['retries']} retries, {flash['short_reads']} short reads,"
         f" {flash['bounced']} through a second buffer,"
         f" {flash['bundles_mismatched']} wrong checksums{downgraded}"),
        ("cache", hits),
    ]  # fmt: skip
    if cache["guessed_per_token"]:
        rows.append(
            (
                "  guesses",
                f"{cache['guessed_per_token']:.1f} bundles a token read before"
                f" they were known to be needed; {cache['guesses_used']:.1%} were,"
                f" {format_bytes(cache['guess_bytes_wasted_per_token'])} a token were not",
            )
        )
    if neurons := cache["neurons_per_token"]:
        rows.append(("  experts", format_silent(neurons, cache["neurons_silent_per_token"])))
    if cache["passes"] or cache["spilled"]:
        rows.append(("  short of slots", f"{cache['passes']} passes, {cache['spilled']} spilled"))
    return rows


def _process(summary: dict[str, Any]) -> list[Row]:
    process, memory = summary["process"], summary["memory"]
    peak = memory["rss_peak_bytes"]
    over = "" if memory["within_ceiling"] in (True, None) else "  ABOVE THE CEILING"
    known = format_memory(peak, memory["ceiling_bytes"]) if peak is not None else "unknown"
    stolen = summary["stolen_share"]
    taken = "unknown"
    if stolen:
        taken = f"{stolen['median']:.1%} of all processors' time ({stolen['min']:.1%} to"
        taken += f" {stolen['max']:.1%}, n = {stolen['n']})"
    return [
        ("memory", f"peak {known}{over}"),
        ("process, a token", f"{_seconds(process['user_ns_per_token'])} user,"
         f" {_seconds(process['system_ns_per_token'])} system,"
         f" {process['voluntary_switches_per_token']:.1f} waits,"
         f" {process['involuntary_switches_per_token']:.1f} preemptions"),
        ("major faults", process["major_faults"]),
        ("stolen, a run", taken),
    ]  # fmt: skip


def _bound(bound: dict[str, Any] | None, settings: dict[str, Any]) -> list[Row]:
    if bound is None:
        return []
    where = f"reads of {format_bytes(bound['read_bytes'])}, depth {bound['depth']:.0f}"
    if bound["flash_ns"] is None:
        problem = settings.get("flash_problem") or "the device cannot be read directly"
        flash = f"{format_bytes(bound['flash_bytes'])} at an unknown rate: {problem}"
    elif not bound["flash_bytes"]:
        flash = "nothing is read"
    else:
        flash = f"{format_bytes(bound['flash_bytes'])} / {_rate(bound['flash_bytes_per_second'])}"
        flash += f" ({where}) = {_seconds(bound['flash_ns'])}"
    rows: list[Row] = [
        ("the bound, a token", "bytes / what this machine gave in the same run"),
        ("  flash", flash),
        ("  DRAM", f"{format_bytes(bound['dram_bytes'])} / {_rate(bound['dram_bytes_per_second'])}"
         f" ({bound['dram_threads']} threads) = {_seconds(bound['dram_ns'])}"),
    ]  # fmt: skip
    if bound["flash_all_rates"]:
        rate = bound["flash_all_rates"]["median"]
        rows.append(
            ("  with all threads", f"flash gives {_rate(rate)} at depth {bound['threads']}")
        )
    alone = " (of DRAM alone)" if bound["flash_ns"] is None else f" ({bound['binds']} binds)"
    rows += [
        ("  bound", f"{_seconds(bound['larger_ns'])}{alone}, whichever is larger;"
         f" {_seconds(bound['sum_ns'])} one after the other"),
        ("  BOUND / TIME", f"{bound['share']:.1%} of what this machine allows;"
         f" {bound['sum_share']:.1%} of one after the other"),
    ]  # fmt: skip
    if bound["cached"]:
        rows.append(("  note", "the weights of a token fit into the processor's cache: DRAM is"
                     " not what feeds it"))  # fmt: skip
    return rows


def _checks(report: dict[str, Any]) -> list[Row]:
    summary = report["summary"]
    read, telemetry = summary["device_bytes"], summary["telemetry"]
    rows: list[Row] = [("checks", "")]
    if read["kernel"] is None:
        rows.append(("  bytes", "this system does not count what a process reads"))
    else:
        flag = "  DIFFERS by more than 1 %" if read["agrees"] is False else ""
        flag = "  (through the page cache)" if read["agrees"] is None else flag
        rows.append(("  bytes", f"reader {read['reader']:,}, /proc/self/io {read['kernel']:,}:"
                     f" {read['difference_share']:+.3%}{flag}"))  # fmt: skip
    if telemetry:
        rows += [
            ("  telemetry", f"{telemetry['share']:+.2%} of a token, in {telemetry['pairs']} pairs"
             f" (95 %: {telemetry['share_low']:+.2%} to {telemetry['share_high']:+.2%})"),
            ("", f"medians {_seconds(telemetry['with_median_ns'])} with,"
             f" {_seconds(telemetry['without_median_ns'])} without:"
             f" {telemetry['medians_difference_share']:+.2%}"),
        ]  # fmt: skip
    same = "the same in all runs" if summary["same_tokens"] else "NOT THE SAME in all runs"
    rows.append(("  tokens", same))
    return rows


def _seconds(ns: float) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= factor:
            return f"{format_number(ns / factor)} {unit}"
    return f"{ns:.0f} ns"


def _spread(values: dict[str, Any]) -> str:
    low, high = _seconds(values["min"]), _seconds(values["max"])
    deviation = _seconds(values["stdev"])
    return f"{_seconds(values['median'])} ({low} to {high}, stdev {deviation}, n = {values['n']})"


def _percentiles(values: dict[str, Any]) -> str:
    names = [
        name
        for name in values
        if name == "max" or (name[0] == "p" and values["n"] >= LEAST_VALUES.get(name, 1))
    ]
    shown = ", ".join(f"{name} {_seconds(values[name])}" for name in names)
    return f"{shown}; n = {values['n']:,}"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"
