"""Names and addresses of the Hugging Face hub, as they are typed and set; asks nobody."""

from __future__ import annotations

import os
import re

from flashllm.errors import UsageError

DEFAULT_REVISION = "main"
DEFAULT_ENDPOINT = "https://huggingface.co"
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "on", "yes", "true")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def endpoint() -> str:
    """The address of the hub: HF_ENDPOINT where that is set."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def offline_variable() -> str | None:
    """The variable that forbids to use the network, if one does."""
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").lower() in _TRUE:
            return name
    return None


def parse_name(text: str) -> tuple[str, str]:
    """Name and revision of `ORG/NAME[@REV]`, or of the address of a page; `UsageError`."""
    plain = re.sub(r"^(https?://)?(www\.)?(huggingface\.co|hf\.co)/|^hf://", "", text)
    name, _, revision = plain.partition("@")
    if plain != text:
        name, _, branch = name.rstrip("/").partition("/tree/")
        revision = revision or branch
    if not is_name(name):
        raise UsageError(
            f"{text}: is no name of a repository; expected ORG/NAME or ORG/NAME@REVISION, as in the"
            " address of its page on huggingface.co"
        )
    if "@" in text and not revision:
        raise UsageError(f"{text}: no revision follows the @; it is a branch, a tag or a commit")
    revision = revision or DEFAULT_REVISION
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise UsageError(f"{text}: {revision!r} is no name of a branch, a tag or a commit")
    return name, revision


def is_name(text: str) -> bool:
    """Whether a text can be the name of a repository."""
    return bool(_NAME.fullmatch(text)) and "--" not in text and ".." not in text
