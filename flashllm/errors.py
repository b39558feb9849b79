"""Every error that a user can meet, as one tree.

    FlashllmError                   exit code 1, unexpected
    +-- UsageError                  2   a flag, a prompt or a setting that makes no sense
    |   +-- ProfileError            2   a profile that cannot be read or does not hold together
    |   +-- NoTokenizer             2   text for a model that came without a tokenizer
    |   +-- PromptTooLong           2   a prompt, or a message, for which the context has no room
    |   +-- ModelClosed             2   a model is used after it was closed
    +-- ModelError                  65  the model's data is wrong
    |   +-- NotACheckpoint          65  the source is no checkpoint
    |   +-- UnsupportedModel        65  a family, an activation or a key that nobody here knows
    |   +-- TensorMismatch          65  a tensor absent, extra, or of a wrong shape or type
    |   +-- LayoutError             65  a converted model that does not hold together
    |   +-- ModelTruncated          65  a file ends before it should
    |   +-- ChecksumMismatch        65  bytes that are not those that were written
    +-- ModelNotFound               66  nothing at that path
    +-- DownloadFailed              69  a server cannot be reached, or did not send what it should
    +-- EngineLost                  70  the engine's process ended, or does not answer
    +-- EngineBusy                  75  another answer is being written in this context
    +-- MemoryCeilingTooSmall       71  the ceiling cannot be met
    +-- OutOfMemory                 71  the system gave no memory; what is open stays usable
    +-- CannotCreate                73  the output cannot be written
    |   +-- DestinationExists       73  and it is not ours to overwrite
    |   +-- NotEnoughSpace          73  on the destination's disk
    +-- ReadFailed                  74  the device or the file system failed
    |   +-- BenchmarkInvalid        74  a measurement that did not measure what it says
    +-- DeviceFailed                74  a GPU broke off what it was asked for
    +-- SessionError                74  conversations cannot be read or kept just now
    |   +-- SessionNotFound         66  there is no such conversation
    |   +-- SessionStoreNewer       65  a later version wrote the database
    |   +-- SessionStoreBroken      65  the database is damaged, or is another program's
    |   +-- NotASession             65  what is to be imported is no conversation
    +-- BatchRowError               65  a row of a batch that cannot be answered
    +-- Interrupted                 75  stopped on request; can be started again
    +-- AccessRefused               77  a repository that only some may read
    +-- ConfigError                 78  a line of config.toml that makes no sense
    +-- Cancelled                   130 a generation stopped on request

A message says what happened, where (file, layer, offset) and what to do next.
Assertions are for bugs; files, disks and users raise one of these.
"""

from __future__ import annotations

EXIT_INTERRUPTED = 130
"""Exit code of a command after Ctrl-C: the one that a shell reports after SIGINT.

`run`, `batch` and `bench tokens` end so after SIGTERM and SIGHUP too, with 143 and 129."""


class FlashllmError(Exception):
    """Base of all errors that the user may see."""

    exit_code = 1


class UsageError(FlashllmError):
    """A flag, a prompt or a setting that makes no sense."""

    exit_code = 2


class ProfileError(UsageError):
    """A profile of a device cannot be read, or does not hold together."""


class NoTokenizer(UsageError):
    """A model that came without a tokenizer was given text, or asked for it."""

    def __init__(
        self,
        message: str = "this model came without a tokenizer; give the prompt as ids:"
        " `flashllm run MODEL --ids 1,2,3`, in Python model.generate([1, 2, 3])",
    ) -> None:
        super().__init__(message)


class PromptTooLong(UsageError):
    """A prompt, or a message, has more tokens than the context has room for."""


class ModelClosed(UsageError):
    """A model, or an answer that was not finished, is used after the model was closed."""


class ModelError(FlashllmError):
    """The data of a model is wrong."""

    exit_code = 65


class NotACheckpoint(ModelError):
    """The source of a conversion is no checkpoint."""


class UnsupportedModel(ModelError):
    """A family, an activation or a configuration key that is not supported."""


class TensorMismatch(ModelError):
    """A tensor is absent, extra, or of a wrong shape or type."""


class LayoutError(ModelError):
    """A converted model does not hold together."""


class ModelTruncated(ModelError):
    """A file ends before it should."""


class ChecksumMismatch(ModelError):
    """Bytes on flash are not those that the converter wrote."""


class ModelNotFound(FlashllmError):
    """There is nothing at the path of a model."""

    exit_code = 66


class DownloadFailed(FlashllmError):
    """A server cannot be reached, or did not send what it should."""

    exit_code = 69


class AccessRefused(FlashllmError):
    """A repository that only some may read: private, gated, or closed."""

    exit_code = 77


class EngineLost(FlashllmError):
    """The engine's process has ended, or does not answer; the model can be opened again."""

    exit_code = 70


class EngineBusy(FlashllmError):
    """Another answer is being written in this context; it goes on undisturbed."""

    exit_code = 75


class MemoryCeilingTooSmall(FlashllmError):
    """The memory ceiling is too small; `smallest_bytes` would be enough."""

    exit_code = 71

    def __init__(self, message: str, smallest_bytes: int) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class OutOfMemory(FlashllmError):
    """The system gave no memory for a step; what is open stays open, and can be asked again."""

    exit_code = 71


class CannotCreate(FlashllmError):
    """The output cannot be written."""

    exit_code = 73


class DestinationExists(CannotCreate):
    """The destination exists and is not ours to overwrite."""


class NotEnoughSpace(CannotCreate):
    """The disk of the destination is too full."""


class ReadFailed(FlashllmError):
    """The device or the file system failed while reading."""

    exit_code = 74


class BenchmarkInvalid(ReadFailed):
    """A measurement did not measure what it says, and its numbers are thrown away."""


class DeviceFailed(FlashllmError):
    """A GPU broke off what it was asked for; the process cannot use it any longer."""

    exit_code = 74


class SessionError(FlashllmError):
    """Conversations cannot be read or kept just now: locked, no space, no permission."""

    exit_code = 74


class SessionNotFound(SessionError):
    """There is no such conversation, or it was deleted meanwhile."""

    exit_code = 66


class SessionStoreNewer(SessionError):
    """The database was written by a later version, and is left as it is."""

    exit_code = 65


class SessionStoreBroken(SessionError):
    """The database is damaged, or is not ours; it is left as it is."""

    exit_code = 65


class NotASession(SessionError):
    """What is to be imported is no conversation as the export writes it."""

    exit_code = 65


class BatchRowError(FlashllmError):
    """A row of a batch cannot be answered; the others can. `code` says why in one word."""

    exit_code = 65

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Interrupted(FlashllmError):
    """Stopped on request; what was done is kept or removed, nothing half-written opens."""

    exit_code = 75


class ConfigError(FlashllmError):
    """The user's settings say something that makes no sense, or cannot be read."""

    exit_code = 78


class Cancelled(FlashllmError):
    """A generation was stopped on request."""

    exit_code = EXIT_INTERRUPTED
