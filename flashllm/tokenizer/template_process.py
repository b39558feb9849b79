"""The child process that renders one chat template; run as a script, importing nothing of flashllm.

A template comes with a model and is a stranger's program. Jinja's sandbox keeps it from the file
system and from Python's insides, but not from looping for ever, from `9 ** (9 ** 9)` or from
doubling a string forty times, and none of these can be interrupted from Python. The kernel can:
hence a process of its own with limits on CPU time and memory, and a parent that stops waiting. It
may not write files either, in case the sandbox has a hole.

Reads one JSON object from stdin (`template`, `variables`, limits); writes one to stdout: `text`, or
`error` with `refused` true where the template itself called `raise_exception`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2.environment import Environment


class RefusedError(Exception):
    """The template called `raise_exception`."""


def _limit_resources(cpu_seconds: int, memory_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not on this platform: the parent's time limit remains
        return
    limits = (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    )
    for kind, limit in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit on address space
            resource.setrlimit(kind, (limit, limit))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes <, > and & for HTML, which models were not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object = "") -> NoReturn:
    raise RefusedError(str(message))


def _new_dict(*values: Any, **named: Any) -> dict[Any, Any]:
    # Templates call `dict`; the class itself has methods that none needs.
    return dict(*values, **named)


def environment(now: datetime) -> Environment:
    """Jinja as chat templates expect it; `now` is the time of `strftime_now`."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}` marks answers for training; rendering passes over the tag."""

        tags = {"generation"}  # noqa: RUF012  as the base class declares it

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class PublicNamespace(Namespace):
        """`namespace()` whose attributes cannot pose as an object's own inner ones."""

        def __init__(*values: Any, **named: Any) -> None:
            itself, rest = values[0], values[1:]
            for name in dict(*rest, **named):
                PublicNamespace._check(name)
            Namespace.__init__(itself, *rest, **named)

        def __setitem__(self, name: str, value: Any) -> None:
            PublicNamespace._check(name)
            Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name: object) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError(f"a namespace has no place for {name[:80]!r}")

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    made.filters["tojson"] = _tojson
    made.globals.update(
        raise_exception=_raise_exception,
        strftime_now=now.strftime,
        namespace=PublicNamespace,
        dict=_new_dict,
    )
    return made


def render(
    environment: Environment, template: str, variables: dict[str, Any], output_limit: int
) -> str:
    """The rendered template; raises what Jinja raises, and `ValueError` past `output_limit`."""
    pieces: list[str] = []
    size = 0
    for piece in environment.from_string(template).generate(**variables):
        size += len(piece)
        if size > output_limit:
            raise ValueError(f"its output is longer than {output_limit} characters")
        pieces.append(piece)
    return "".join(pieces)


def main() -> None:
    """Answers one request."""
    request = json.loads(sys.stdin.buffer.read())
    jinja = environment(datetime.fromisoformat(request["now"]))
    _limit_resources(request["cpu_seconds"], request["memory_bytes"])
    answer: dict[str, object]
    try:
        text = render(jinja, request["template"], request["variables"], request["output_limit"])
        answer = {"text": text}
    except RefusedError as error:
        answer = {"error": str(error), "refused": True}
    except MemoryError:
        answer = {"error": "it needs too much memory", "refused": False}
    except Exception as error:  # noqa: BLE001  a stranger's program may raise anything
        answer = {"error": f"{type(error).__name__}: {error}", "refused": False}
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
