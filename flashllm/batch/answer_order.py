"""Lines of answers on their way out: in the order of the rows, or as they come."""

from __future__ import annotations

from collections.abc import Callable

from flashllm.batch.appended_file import AppendedFile


class AnswerOrder:
    """Passes the lines of `n_rows` rows on, each once.

    In the rows' order, a line that comes early waits in a file, of which memory holds only the
    place.
    """

    def __init__(
        self,
        n_rows: int,
        append: Callable[[bytes], object],
        open_held: Callable[[], AppendedFile],
        *,
        as_finished: bool = False,
    ) -> None:
        """`append` writes a line; `open_held` gives the file for lines that come early."""
        self.n_rows = n_rows
        self.n_done = 0
        self.n_failures = 0
        self._append = append
        self._open_held = open_held
        self._as_finished = as_finished
        self._is_done = bytearray(n_rows)
        self._next = 0
        self._file: AppendedFile | None = None
        self._held: dict[int, tuple[int, int]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every row is done."""
        return self.n_done == self.n_rows

    def is_done(self, number: int) -> bool:
        """Whether the row has its line."""
        return bool(self._is_done[number])

    def write(self, number: int, line: bytes, *, is_failure: bool) -> None:
        """Passes a row's line on, now or when its turn comes."""
        assert not self.is_done(number), number
        if self._as_finished or number == self._next:
            self._append(line)
            self._pass(number, is_failure)
            self._release()
        else:
            offset = self._held_file().append(line)
            self._hold(number, (offset, len(line)), is_failure)

    def restore(self, number: int, *, is_failure: bool) -> bool:
        """Takes note of a line that an earlier run passed on; False if its place is not here."""
        if self.is_done(number) or not (self._as_finished or number == self._next):
            return False
        self._pass(number, is_failure)
        return True

    def restore_held(self, number: int, place: tuple[int, int], *, is_failure: bool) -> None:
        """Takes note of a line, at (offset, bytes), that has waited since an earlier run."""
        if not self.is_done(number):
            self._hold(number, place, is_failure)

    def release(self) -> None:
        """Passes on what has its turn, once everything is restored."""
        self._release()

    def _pass(self, number: int, is_failure: bool) -> None:
        self._mark(number, is_failure)
        self._next += 1

    def _hold(self, number: int, place: tuple[int, int], is_failure: bool) -> None:
        self._held[number] = place
        self._mark(number, is_failure)

    def _mark(self, number: int, is_failure: bool) -> None:
        self._is_done[number] = 1
        self.n_done += 1
        self.n_failures += is_failure

    def _release(self) -> None:
        while self._next in self._held:
            self._append(self._held_file().read(*self._held[self._next]))
            del self._held[self._next]
            self._next += 1

    def _held_file(self) -> AppendedFile:
        if self._file is None:
            self._file = self._open_held()
        return self._file
