"""What pools and caches ask of memory that is not DRAM: a device's, with kernels of its own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm import core


class DeviceMemory(Protocol):
    """Memory of a device. Its bytes go where rows go: the kernels multiply them where they lie."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Bytes there, zero; `OutOfMemory` where there are not so many.

        Only kernels look at them. They can be cut to a range, and `numpy.asarray` copies them.
        """

    def pin(self, buffer: core.Buffer) -> None:
        """Lock a buffer in DRAM, as far as the system allows, so that copies run beside the rest.

        It must not be read into again before `synchronize`.
        """

    def unpin(self, buffer: core.Buffer) -> None:
        """Undo `pin`, before the buffer goes."""

    def report(self) -> dict[str, Any]:
        """What lies there, and what was copied, by names."""

    def synchronize(self) -> None:
        """Wait until all copies have ended."""

    def close(self) -> None:
        """Give back to the device what nothing uses any longer."""
