"""The parser of arguments, whose errors say what was probably meant and where help is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from flashllm.errors import UsageError

WORDS = "words"
"""Where a command keeps its words, if it takes any number of them, options between them or not."""


def with_hint(message: str, hint: str) -> str:
    """A sentence, and behind it what else helps."""
    if message.endswith("?"):
        return f"{message} {hint[0].upper()}{hint[1:]}"
    return f"{message}; {hint}"


class Once(argparse._StoreAction):  # noqa: SLF001  argparse has no other name for it
    """Stores a value, and refuses a second one, which would replace the first in silence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Stores the value."""
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "given twice; put all of it into one, in quotes")
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of leaving, with the nearest word and the command's own help."""

    def error(self, message: str) -> NoReturn:
        """One message, as for every other error."""
        if self._subparsers is not None and "required" in message:
            message = f"{self.prog} does several things; give one of {', '.join(self._kinds())}"
        raise UsageError(with_hint(message, f"see `{self.prog} --help`"))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Reads arguments; what nobody knows is an error here, where the command is known."""
        given = list(args or ())
        if self._subparsers is None:
            self._refuse_foreign(given)
        found, left = super().parse_known_args(given, namespace)
        if self._subparsers is not None or not left:
            return found, left
        if unknown := [word for word in left if word.startswith("-") and word != "-"]:
            self.error(self._format_unknown(unknown[0].partition("=")[0]))
        words = getattr(found, WORDS, None)
        if words is None:
            self.error(
                f"{left[0]!r} is one word too many; what belongs together needs quotes, and a"
                " prompt is for `flashllm run`"
            )
        words += left
        return found, []

    def _refuse_foreign(self, given: Sequence[str]) -> None:
        """An error for options of other programs, which may look like some of ours (`-ngl`)."""
        from flashllm.cli.shared.foreign_words import OPTIONS, PAIRS

        options = given[: given.index("--")] if "--" in given else given
        for word, following in pairwise([*options, ""]):
            name, _, value = word.partition("=")
            known = name in self._option_string_actions
            if not known and (sentence := OPTIONS.get(name.replace("_", "-"))):
                self.error(f"{name}: {sentence}")
            if known and (sentence := PAIRS.get((name, value or following))):
                self.error(f"{name} {value or following}: {sentence}")

    def _format_unknown(self, option: str) -> str:
        from flashllm.settings.nearest import nearest

        near = nearest(option, self._option_string_actions)
        meant = f"; did you mean {near[0]}?" if near else ""
        return f"there is no option {option}{meant}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """An error for a value that is none of the choices, with the nearest one."""
        from flashllm.cli.shared.foreign_words import VALUES
        from flashllm.settings.nearest import nearest

        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        same = VALUES.get(str(value).lower())
        near = [same] if same in known else nearest(str(value), known)
        meant = f"did you mean {near[0]}? " if near else ""
        raise argparse.ArgumentError(
            action, f"{value!r} is unknown; {meant}expected one of {', '.join(known)}"
        )

    def _kinds(self) -> list[str]:
        kinds = [action for action in self._actions if isinstance(action.choices, dict)]
        return [name for action in kinds for name in action.choices or ()]
