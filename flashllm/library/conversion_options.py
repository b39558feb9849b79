"""How a checkpoint is to be converted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashllm.dtypes import GROUP_BYTES

NO_PREDICTORS = "none"
TRAIN = "train"
INSIDE = "checkpoint"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How a checkpoint is to be converted; as the options of `flashllm convert`."""

    dtype: str | None = None
    """None as the source has it."""
    predictors: str = NO_PREDICTORS
    """none, train or checkpoint; all but none are lossy."""
    calibration: Path | None = None
    requantise: bool = False
    """Whether weights that were rounded before may be again."""

    @property
    def lossy(self) -> bool:
        """Whether the model will leave out neurons that are not zero, or rounds its weights."""
        return self.predictors != NO_PREDICTORS or self.dtype in GROUP_BYTES or self.requantise

    def arguments(self) -> list[str]:
        """For the command line."""
        given = ["--predictors", self.predictors]
        if self.dtype is not None:
            given += ["--dtype", self.dtype]
        if self.calibration is not None:
            given += ["--calibration", str(self.calibration.absolute())]
        if self.requantise:
            given.append("--requantise")
        return given
