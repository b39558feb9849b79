"""Names and addresses of the Hugging Face hub, as they are typed and set; asks nobody."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from flashllm.errors import UsageError

DEFAULT_REVISION = "main"
DEFAULT_ENDPOINT = "https://huggingface.co"
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "on", "yes", "true")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_ADDRESS = re.compile(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/|hf:(//)?")
_GGUF = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$")
"""What names of files in GGUF end with."""


@dataclass(frozen=True, slots=True)
class RepositoryId:
    """A repository, and one of its revisions: a branch, a tag or a commit; "" is the usual one."""

    name: str
    revision: str = ""

    def __str__(self) -> str:
        """As it is typed."""
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @classmethod
    def read(cls, text: str) -> RepositoryId:
        """`ORG/NAME`, `ORG/NAME@REVISION`, or the address of a page; `UsageError` for others.

        Some old repositories have no organisation: a bare name is one too.
        """
        address = _ADDRESS.match(text)
        name, at, revision = text[address.end() if address else 0 :].partition("@")
        name, tree, branch = name.rstrip("/").partition("/tree/")
        if not is_name(name):
            raise UsageError(
                f"{text}: is no name of a repository; expected ORG/NAME or ORG/NAME@REVISION, as in"
                " the address of its page on huggingface.co"
            )
        if at and not revision:
            raise UsageError(
                f"{text}: no revision follows the @; it is a branch, a tag or a commit"
            )
        revision = revision or branch
        if (at or tree) and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise UsageError(f"{text}: {revision!r} is no name of a branch, a tag or a commit")
        return cls(name, revision)

    @classmethod
    def parse(cls, text: str) -> RepositoryId | None:
        """The same; None for what is none of these."""
        try:
            return cls.read(text)
        except UsageError:
            return None


def endpoint() -> str:
    """The address of the hub: HF_ENDPOINT where that is set."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def offline_variable() -> str | None:
    """The variable that forbids to use the network, if one does."""
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").lower() in _TRUE:
            return name
    return None


def is_name(text: str) -> bool:
    """Whether a text can be the name of a repository, with or without its organisation."""
    return bool(_NAME.fullmatch(text)) and "--" not in text and ".." not in text


def gguf_stem(name: str) -> str:
    """What a model in GGUF is called by the name of one of its files."""
    return _GGUF.sub("", name)
