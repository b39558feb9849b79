"""`python -m tools.recall OUT`: trains the model; OUT gets a checkpoint, and texts to compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tools.recall.task import Shape, make_text
from tools.recall.train import TOKENS, Step, train

TEXT = Shape(pairs=400, noise=6800, asked=400)
CALIBRATION = Shape(pairs=200, noise=200, asked=100)
REPORTED_EVERY_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, writes, and says how it went."""
    parser = argparse.ArgumentParser(prog="python -m tools.recall", description=__doc__)
    parser.add_argument("output", type=Path, help="where the checkpoint goes, and training goes on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15.0, help="at most (%(default)g)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (%(default)d)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a step (%(default)d)")
    options = parser.parse_args(arguments)

    reported = 0.0

    def report(step: Step) -> None:
        nonlocal reported
        if step.seconds >= reported + REPORTED_EVERY_S or step.number == 0:
            reported = step.seconds
            print(
                f"step {step.number}, stage {step.stage}: loss {step.loss:.3f},"
                f" {step.right:.1%} right, {step.seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    kept = options.output / "training.pt"
    model = train(
        options.seed,
        60 * options.minutes,
        report,
        options.threads,
        kept=kept,
        device=options.device,
        tokens=options.tokens,
    )
    model.save(options.output)
    generator = np.random.default_rng(options.seed + 1)
    for name, shape in (("text.ids", TEXT), ("calibration.ids", CALIBRATION)):
        lines = [" ".join(map(str, make_text(shape, generator)[0].tolist())) for _ in range(4)]
        (options.output / name).write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
