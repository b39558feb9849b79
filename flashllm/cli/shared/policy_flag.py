"""`--policy` where it may also be a policy of a batch: gbs,#gb,wg,wc,cg,cc,hg,hc."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from flashllm.cli.shared.flags import add_options
from flashllm.errors import UsageError
from flashllm.options import POLICIES
from flashllm.settings.options import MODEL_OPTIONS

AUTO = "auto"
"""What leaves a batch's policy to a search."""


class _Policies(tuple[str, ...]):
    """The cache's policies, to be completed and corrected, and any policy of a batch."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or (isinstance(value, str) and "," in value)


class _PolicyAction(argparse.Action):
    """Puts a policy of a batch beside that of the cache, whose flag it shares."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        from flashllm.planning.batch.policy import parse_batch_policy

        assert isinstance(values, str)
        if values == AUTO:
            namespace.batch_policy = AUTO
        elif "," not in values:
            namespace.policy = values
        else:
            try:
                namespace.batch_policy = parse_batch_policy(values)
            except UsageError as error:
                raise argparse.ArgumentError(self, str(error)) from error


def add_policy(add: Any, help_text: str, *, auto: bool = False) -> None:
    """Adds the flag by `add_argument` of a parser or a group; with `auto` as another choice."""
    add(
        "--policy",
        dest="policy",
        action=_PolicyAction,
        choices=_Policies((*POLICIES, AUTO) if auto else POLICIES),
        metavar="POLICY",
        help=help_text,
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds all options of models but `--policy`, which is added by itself."""
    parser.set_defaults(batch_policy=None)

    options = (
        dataclasses.replace(option, flags=()) if option.name == "policy" else option
        for option in MODEL_OPTIONS
    )
    add_options(parser, "model", tuple(options))
