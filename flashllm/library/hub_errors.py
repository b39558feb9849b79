"""What huggingface_hub, the network and the hub may raise or answer, as errors that lead on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flashllm.errors import (
    AccessRefused,
    DownloadFailed,
    FlashllmError,
    ModelNotFound,
    UsageError,
)
from flashllm.library.formatting import clean
from flashllm.library.hub_names import endpoint
from flashllm.system.log import without_secrets


@contextlib.contextmanager
def our_errors(name: str, revision: str, file: str = "") -> Iterator[None]:
    """Turns whatever asking the hub raises into an error of ours."""
    try:
        yield
    except (FlashllmError, AssertionError):
        raise
    except Exception as problem:  # httpx2, its parts, the hub and the system raise many kinds
        raise _translated(problem, name, revision, file) from problem


def _translated(problem: Exception, name: str, revision: str, file: str) -> FlashllmError:
    from huggingface_hub import errors

    status = _status(problem)
    if isinstance(problem, errors.GatedRepoError):
        return AccessRefused(_gated(name, status))
    if isinstance(problem, errors.DisabledRepoError):
        return AccessRefused(f"{name}: was closed by its authors or by the hub")
    if isinstance(problem, errors.RevisionNotFoundError):
        return ModelNotFound(
            f"{name}: has no branch, tag or commit {revision}; leave @{revision} out for the"
            f" latest, or look at {endpoint()}/{name}/tree/main"
        )
    if isinstance(problem, errors.EntryNotFoundError):
        return ModelNotFound(f"{name}: has no file {file} any more; run the same command again")
    if isinstance(problem, errors.RepositoryNotFoundError) or status in (401, 404):
        return ModelNotFound(_absent(name, status))
    if status == 403:
        return AccessRefused(
            f"{name}: access is refused; the token must be allowed to read it:"
            f" {endpoint()}/settings/tokens"
        )
    if status is not None:
        later = "wait a few minutes" if status == 429 else "try again later"
        return DownloadFailed(f"{_where(name, file)}: {endpoint()} answers {status}; {later}")
    if isinstance(problem, errors.HFValidationError):
        return UsageError(f"{name}: is no name of a repository")
    again = "; it goes on where this one ended" if file else ""
    return DownloadFailed(
        f"{_where(name, file)}: cannot be fetched from {endpoint()}: {_words(problem)}. Check the"
        f" connection (HTTPS_PROXY, HF_ENDPOINT), then run the same command again{again}"
    )


def _where(name: str, file: str) -> str:
    return f"{name}: {file}" if file else name


def _status(problem: Exception) -> int | None:
    """The status of the answer that an error is about."""
    response = getattr(problem, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


_SIGN_IN = "set HF_TOKEN to a token of yours ({endpoint}/settings/tokens), or `hf auth login`"


def _gated(name: str, status: int | None) -> str:
    page = f"{endpoint()}/{name}"
    if status == 401 or not _has_token():
        advice = _SIGN_IN.format(endpoint=endpoint())
        return f"{name}: is gated. Accept its licence at {page}, then {advice}"
    return (
        f"{name}: is gated, and the token's account may not read it yet. Accept its licence at"
        f" {page} (some authors answer by hand); a fine-grained token must also be allowed to read"
        " gated repositories"
    )


def _absent(name: str, status: int | None) -> str:
    page = f"{endpoint()}/{name}"
    if not _has_token():
        advice = _SIGN_IN.format(endpoint=endpoint())
        return (
            f"{name}: there is no such repository, or it is private. Check the name at {page}; for"
            f" a private one, {advice}"
        )
    refused = ", the token (HF_TOKEN) is not valid any more" if status == 401 else ""
    return (
        f"{name}: there is no such repository{refused}, or the token's account may not read it."
        f" Check the name at {page}, and the token at {endpoint()}/settings/tokens"
    )


def _words(problem: Exception) -> str:
    """What a library says is wrong, in one clean line without secrets."""
    text = str(problem).strip().splitlines() or [""]
    return clean(without_secrets(text[0])) or type(problem).__name__
