"""Memory and time of training one large layer: `python -m benchmarks.training_memory`.

    python -m benchmarks.training_memory [--tokens N] [--width 4096] [--neurons 16384] [--rank R]

The layer is synthetic: inputs of a few hundred directions and an up-projection of rank R, each with
a tenth of noise, 3 % of the neurons active. Everything else is what training a real model runs:
rows on disk, the ladder of ranks, training, thresholds, windows. Memory does not depend on the
number of tokens, which are on disk. The model itself is not there: its resident weights come on top
while recording, not while training.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from flashllm.predictors.layer import TrainedLayer, layer_tokens, train_layer
from flashllm.predictors.record import GroupRecording, Tap, Text, next_group
from flashllm.predictors.recorded_rows import RowShape
from flashllm.predictors.resumable import WorkDirectory
from flashllm.predictors.split import Split, split_contexts
from flashllm.predictors.targets import Targets

from flashllm.progress import LineProgress

CONTEXT_TOKENS = 256
LIMIT_BYTES = 4 << 30
SILENT_Z = 1.8808
"""The normal distribution lies below this 97 % of the time."""
DIRECTIONS = 512
NOISE = 0.1
ROWS = 2048


class SyntheticLayer:
    """In place of a decoder: one layer, its inputs from a seed, its margins from its weights."""

    def __init__(self, shape: RowShape, rank: int) -> None:
        self._shape = shape
        self._rank = rank
        self._up: torch.Tensor | None = None
        generator = torch.Generator().manual_seed(1)
        self._mix = torch.randn(DIRECTIONS, shape.d_model, generator=generator) / DIRECTIONS**0.5
        self._inputs = torch.Generator().manual_seed(2)
        self._cut: torch.Tensor | None = None

    def up_projection(self) -> torch.Tensor:
        """The true weights [d_ffn, d_model]; made anew, as they would be read."""
        generator = torch.Generator().manual_seed(3)
        width, neurons = self._shape.d_model, self._shape.d_ffn
        right = torch.randn(self._rank, width, generator=generator) / (self._rank * width) ** 0.5
        up = torch.empty(neurons, width)
        for start in range(0, neurons, ROWS):
            rows = up[start : start + ROWS]
            left = torch.randn(len(rows), self._rank, generator=generator)
            noise = torch.randn(len(rows), width, generator=generator)
            torch.addmm(noise, left, right, beta=NOISE / width**0.5, out=rows)
        return up

    def prefill(self, ids: Sequence[int], *, tap: Tap) -> None:
        """The next tokens."""
        if self._up is None:
            self._up = self.up_projection()
            variance = (self._mix @ self._up.T).square().sum(0)
            variance += NOISE**2 * self._up.square().sum(1)
            self._cut = SILENT_Z * variance.sqrt()
        assert self._cut is not None
        directions = torch.randn(len(ids), DIRECTIONS, generator=self._inputs)
        noise = torch.randn(len(ids), self._shape.d_model, generator=self._inputs)
        inputs = torch.addmm(noise, directions, self._mix, beta=NOISE)
        margin = inputs @ self._up.T - self._cut
        tap(0, inputs.numpy(), margin.numpy())

    def close(self) -> None:
        """Free the weights, as a closed decoder does."""
        self._up = self._cut = None


def measure(shape: RowShape, tokens: int, rank: int, directory: Path) -> dict[str, object]:
    """Record and train one layer in `directory`; what it took."""
    progress = LineProgress()
    contexts = [[0] * CONTEXT_TOKENS] * (tokens // CONTEXT_TOKENS)
    split = split_contexts([len(ids) for ids in contexts])
    layer = SyntheticLayer(shape, rank)
    before_bytes = peak_bytes()
    with WorkDirectory(directory / "work", "benchmark") as work:
        started = time.monotonic()
        next_group(work, [0], shape, split.report.stop)
        with GroupRecording(work, [0], shape, Text(contexts, len(split.train))) as recording:
            progress.start("recording", split.report.stop * shape.row_bytes)
            recording.record(layer, progress)
            progress.finish()
        layer.close()
        recorded, recorded_bytes = time.monotonic(), peak_bytes()
        total_tokens = layer_tokens(split, shape.d_model, shape.d_ffn)
        progress.start("training", total_tokens * shape.row_bytes)
        trained = _train(recording, layer, shape, split, progress)
        progress.finish()
        seconds = time.monotonic() - recorded
        work.remove()
    errors = trained.choices[0].errors
    return {
        "d_model": shape.d_model,
        "d_ffn": shape.d_ffn,
        "tokens": split.report.stop,
        "recorded_bytes": split.report.stop * shape.row_bytes,
        "recording_seconds": round(recorded - started, 1),
        "training_seconds": round(seconds, 1),
        "rss_peak_bytes_before": before_bytes,
        "rss_peak_bytes_recording": recorded_bytes,
        "rss_peak_bytes": peak_bytes(),
        "limit_bytes": LIMIT_BYTES,
        "rank": errors.rank,
        "false_negatives": errors.false_negatives,
        "false_positives": errors.false_positives,
    }


def _train(
    recording: GroupRecording,
    layer: SyntheticLayer,
    shape: RowShape,
    split: Split,
    progress: LineProgress,
) -> TrainedLayer:
    with recording.data(0) as data:
        return train_layer(
            data,
            split,
            layer.up_projection,
            recording.mean_margin(0),
            4 * shape.d_model,
            Targets(),
            0,
            lambda tokens: progress.advance(tokens * shape.row_bytes),
        )


def peak_bytes() -> int:
    """The most memory that this process had resident, mapped pages included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where the limit was kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=300_000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--neurons", type=int, default=16384)
    parser.add_argument("--rank", type=int, default=48, help="of the synthetic weights")
    parser.add_argument("--directory", type=Path, help="where to record; a temporary one without")
    options = parser.parse_args(arguments)
    if options.tokens < 3 * CONTEXT_TOKENS:
        parser.error(f"--tokens: at least {3 * CONTEXT_TOKENS}")
    shape = RowShape(options.width, options.neurons)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        found = measure(shape, options.tokens, options.rank, Path(directory))
    print(json.dumps(found))
    return int(int(str(found["rss_peak_bytes"])) > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
