"""The child process that renders one chat template; run as a script, importing nothing of flashllm.

A template comes with a model and is somebody else's program. Jinja's sandbox keeps it from the
file system and from Python's insides, but not from looping for ever, from `9 ** (9 ** 9)` or from
doubling a string forty times, and none of these can be interrupted from Python. The kernel can:
hence a process of its own with limits on CPU time and memory, and a parent that stops waiting.

Reads one JSON object from stdin (`template`, `variables`, limits); writes one to stdout: `text`, or
`error` with `refused` true where the template itself called `raise_exception`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any, NoReturn


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
    )
    for kind, limit in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit on address space
            resource.setrlimit(kind, (limit, limit))


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # Jinja's own escapes <, > and & for HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: object) -> NoReturn:
    raise RefusedError(str(message))


def render(template: str, variables: dict[str, Any], output_limit: int) -> str:
    """The rendered template; raises what Jinja raises, and `ValueError` past `output_limit`."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks answers for training; rendering passes over the tag."""

        tags = {"generation"}  # noqa: RUF012  as the base class declares it

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
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
    _limit_resources(request["cpu_seconds"], request["memory_bytes"])
    answer: dict[str, object]
    try:
        answer = {
            "text": render(request["template"], request["variables"], request["output_limit"])
        }
    except RefusedError as error:
        answer = {"error": str(error), "refused": True}
    except MemoryError:
        answer = {"error": "it needs too much memory", "refused": False}
    except Exception as error:  # noqa: BLE001  a stranger's program may raise anything
        answer = {"error": f"{type(error).__name__}: {error}", "refused": False}
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
