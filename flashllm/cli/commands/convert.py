"""`flashllm convert` and `flashllm reorder`: make a converted model."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import Output, remark
from flashllm.json_schema import with_schema
from flashllm.library.open import usual_destination
from flashllm.schedule import Schedule
from flashllm.settings.values import parse_number

if TYPE_CHECKING:
    from flashllm.convert import ConversionPlan, PhaseWork, ProgressKind


def convert(arguments: argparse.Namespace) -> int:
    """Converts as the arguments ask and prints where the model is."""
    from flashllm.convert import convert as convert_checkpoint

    arguments.source = open_model.checkpoint_directory(arguments.source)
    if arguments.destination is None:
        arguments.destination = usual_destination(arguments.source)
    report = ConversionReport(arguments.destination, arguments.progress, arguments.dry_run)
    with stopped_like_ctrl_c():
        convert_checkpoint(
            arguments.source,
            arguments.destination,
            dtype=arguments.dtype,
            act=arguments.act,
            fatrelu_threshold=arguments.fatrelu_threshold,
            predictors=arguments.predictors,
            calibration=arguments.calibration,
            resident_dtype=arguments.resident_dtype,
            predictor_dtype=arguments.predictor_dtype,
            order=arguments.order,
            allow_pickle=arguments.allow_pickle,
            requantise=arguments.requantise,
            progress=open_model.terminal_progress(arguments.progress, report.schedule),
            on_plan=report.begin,
            dry_run=arguments.dry_run,
        )
    return report.end()


def reorder(arguments: argparse.Namespace) -> int:
    """Rewrites the model in another order and prints where it is."""
    from flashllm.convert import reorder as reorder_model

    arguments.source = open_model.model_directory(arguments.source)
    report = ConversionReport(arguments.destination, arguments.progress, arguments.dry_run)
    with stopped_like_ctrl_c():
        reorder_model(
            arguments.source,
            arguments.destination,
            calibration=arguments.calibration,
            progress=open_model.terminal_progress(arguments.progress, report.schedule),
            on_plan=report.begin,
            dry_run=arguments.dry_run,
        )
    return report.end()


class ConversionReport:
    """Says what will be made before that begins, and what was made, in the form of the progress.

    Standard output gets where the model is; of a dry run, what would be made.
    """

    def __init__(self, destination: Path, progress: ProgressKind, dry_run: bool) -> None:
        self.schedule = Schedule()
        self._destination = destination
        self._kind = progress
        self._dry_run = dry_run
        self._phases: tuple[PhaseWork, ...] = ()

    def begin(self, plan: ConversionPlan) -> None:
        """Says what will be written, where, how large, and how long it takes."""
        from flashllm.library.conversion_formatting import format_plan
        from flashllm.library.conversion_speeds import speeds_for

        speeds = speeds_for(plan.destination)
        self._phases = plan.phases
        self.schedule.expect(speeds.expect(plan.phases))
        seconds = sum(phase.seconds for phase in self.schedule.phases)
        lines = format_plan(plan, seconds, speeds.origin)
        if self._dry_run:
            Output().write("".join(f"{line}\n" for line in lines))
            return
        values = {
            "destination": str(plan.destination),
            "written_bytes": plan.written_bytes,
            "source_bytes": plan.source_bytes,
            "scratch_bytes": plan.scratch_bytes,
            "seconds": round(seconds, 1),
        }
        self._say("plan", lines, values)

    def end(self) -> int:
        """Says what was made; returns the exit code."""
        from flashllm.library.conversion_speeds import keep_speeds
        from flashllm.library.conversion_summary import format_summary, summarize

        if self._dry_run:
            return 0
        keep_speeds(self._destination, self._phases, self.schedule)
        summary = summarize(self._destination, self.schedule.seconds)
        self._say("summary", format_summary(summary), summary.to_json())
        output = Output()
        output.write(str(self._destination))
        output.end_line()
        return 0

    def _say(self, event: str, lines: list[str], values: dict[str, Any]) -> None:
        if self._kind == "jsonl":
            said = with_schema({"event": event, "lines": lines, **values})
            print(json.dumps(said), file=sys.stderr, flush=True)
        elif self._kind != "none":
            for line in lines:
                remark(line)


@contextlib.contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """Context manager in which signals to end clean up like Ctrl-C, since gigabytes may be there.

    Signals that are ignored, as under nohup, stay ignored.
    """
    signals = (signal.SIGTERM, signal.SIGHUP)
    changed = [number for number in signals if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


PROGRESS_KINDS = ("auto", "plain", "jsonl", "none")
"""As in `flashllm.progress`, which is not loaded for `--help`."""
CONVERT_EXAMPLES = """\
examples:
  flashllm convert org/big --predictors train              # from the Hugging Face cache
  flashllm convert ~/big ~/big.flash --predictors train
  flashllm convert ~/big ~/big.flash --predictors train --dry-run         # says what it would do
  flashllm convert ~/big ~/big.flash --dtype bf16 --predictors none
  flashllm convert ~/big ~/big.flash --dtype int8 --predictors train      # half of 16 bits
  flashllm convert ~/big ~/big.flash --dtype int4 --resident-dtype int8 --predictor-dtype int8
  flashllm convert ~/big-Q4_0.gguf                                        # as it is
"""
REORDER_EXAMPLES = """\
examples:
  flashllm reorder ~/big.flash ~/big.ordered --calibration some-text.txt
"""


def add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    """What `convert` takes."""
    parser.add_argument(
        "source",
        metavar="SRC",
        help="directory of the checkpoint, a .gguf (of several parts any one), or"
        " ORG/NAME[@REVISION] of the Hugging Face cache (`flashllm ls --checkpoints`)",
    )
    parser.add_argument(
        "destination",
        nargs="?",
        type=Path,
        metavar="DST",
        help="directory to create (default: NAME.flash among the models that `flashllm ls` finds)",
    )
    add_reading(parser)
    add_requantise(parser)
    add_learning(parser)
    add_allow_pickle(parser)
    add_dry_run(parser)
    add_progress(parser)


def add_allow_pickle(parser: argparse.ArgumentParser) -> None:
    """Adds `--allow-pickle`."""
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read weights (.bin) and predictors (.pt) from pickles, which can carry programs: as"
        " plain tensors, in a process with limits; without it they are refused",
    )


def add_requantise(parser: argparse.ArgumentParser) -> None:
    """Adds `--requantise`."""
    parser.add_argument(
        "--requantise",
        action="store_true",
        help="(lossy) round weights of a .gguf a second time where no encoding here holds the same"
        " values, as of Q4_K; without it they are refused",
    )


def add_learning(parser: argparse.ArgumentParser) -> None:
    """Adds options of what is learnt or taken over beside the weights."""
    from flashllm.dtypes import PREDICTOR_DTYPES  # later, as the chat starts faster without it

    parser.add_argument(
        "--predictors",
        default="none",
        metavar="none|train|checkpoint|PATH",
        help="(lossy) guess which neurons will be active: with predictors trained now, those in "
        "the checkpoint, or those in a predictors.safetensors or a folder of model_0.pt, ... "
        "(default: none)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="text to train predictors on, to measure what neurons do, and to order them by",
    )
    parser.add_argument(
        "--predictor-dtype",
        choices=PREDICTOR_DTYPES,
        help="encoding of the predictors (default: f16, or as they are where they exist)",
    )
    parser.add_argument(
        "--order",
        choices=("none", "coactivation"),
        default="none",
        help="of neurons on flash: the checkpoint's, or those together that the calibration text "
        "needs together, so that fewer and larger reads are made (default: none)",
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Adds options that complete or correct a checkpoint's config.json."""
    from flashllm.dtypes import DTYPES

    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="encoding of the weights; int8, int4 and mxfp4 are rounded (default: the source's)",
    )
    parser.add_argument(
        "--resident-dtype",
        choices=DTYPES,
        help="of those that stay in memory: attention, embeddings, head (default: as --dtype)",
    )
    parser.add_argument(
        "--act", metavar="NAME", help="its activation, where config.json is wrong about it: relu"
    )
    parser.add_argument(
        "--fatrelu-threshold",
        type=argument(parse_number),
        metavar="T",
        help="what a gate must exceed to be kept (default: the source's)",
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Adds `--dry-run`."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything and say what would be written, where, how large and how long it"
        " would take; write nothing",
    )


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Adds `--progress`, which writes to standard error."""
    parser.add_argument(
        "--progress",
        choices=PROGRESS_KINDS,
        default="auto",
        help="on standard error: a bar on a terminal and lines elsewhere (auto), lines (plain), a "
        "JSON object a line (jsonl), or none",
    )


def add_reorder_arguments(parser: argparse.ArgumentParser) -> None:
    """What `reorder` takes."""
    parser.add_argument("source", metavar="MODEL", help="a converted model, by name or directory")
    parser.add_argument("destination", type=Path, metavar="DST", help="directory to create")
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="text from which to learn which neurons are used together",
    )
    add_dry_run(parser)
    add_progress(parser)
