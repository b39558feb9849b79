"""Arrows between modules: never in a circle, and between rooms only down.

Every import counts: at the top of a file, inside of a function, for types only. `flashllm.convert`
and `flashllm.predictors` are what `tools.convert` and `predictors` are called once installed. The
lazy names of `flashllm/__init__` and `__main__` are left out: everything is below these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("flashllm", "tools/convert", "predictors")
LOOSE_MAX = 10
FLOORS = (
    ("errors",),
    ("dtypes",),
    (
        "arrays",
        "json_schema",
        "large_arrays",
        "options",
        "progress",
        "schedule",
        "spec",
        "text_table",
        "units",
    ),
    ("core", "tokenizer", "untrusted"),
    ("system",),
    ("conversations", "flash"),
    ("hardware", "kv_cache", "settings", "weight_cache"),
    ("planning",),
    ("device", "telemetry"),
    ("model",),
    ("engine",),
    ("predictors",),
    ("convert",),
    ("batch", "bench", "library"),
    ("ui",),
    ("cli",),
)
"""Rooms, the lowest first. Those of one floor know nothing of each other, the nouns' apart."""
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
UI_FLOORS = (
    ("closed_widgets", "lean_strips", "terminal", "widgets"),
    ("commands",),
    ("panels", "prompt", "transcript"),
    ("screens",),
    ("base_app",),
    ("chat",),
    ("app",),
    ("run",),
)
CLI_FLOORS = (("shared",), ("bench", "commands", "completion", "run"), ("parser",), ("main",))


@cache
def modules() -> dict[str, Path]:
    """Files by the names that they have once installed."""
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[1:] if parts[0] == "tools" else parts
            parts = parts if parts[0] == "flashllm" else ("flashllm", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(name: str, path: Path) -> Iterator[tuple[str, int]]:
    """Modules that a file imports anywhere, with the line."""
    known = modules()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                target = inner if inner in known else base
                if target in known:
                    yield target, node.lineno


@cache
def arrows() -> dict[str, dict[str, int]]:
    """From each module to those that it imports, and in which line; the exempt ones left out."""
    return {
        name: {target: line for target, line in imported(name, path) if target != name}
        for name, path in modules().items()
        if name not in ("flashllm", "flashllm.__main__")
    }


def circles() -> list[list[str]]:
    """Modules that reach each other (Tarjan's components of more than one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in arrows().get(name, {}):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            start = stack.index(name)
            component, stack[start:] = stack[start:], []
            if len(component) > 1:
                found.append(sorted(component))

    for name in arrows():
        if name not in index:
            visit(name)
    return found


def test_no_circle() -> None:
    assert circles() == []


def rising(top: str, floors: tuple[tuple[str, ...], ...]) -> list[str]:
    """Arrows below a package that do not go down its floors, as file:line and target."""
    floor = {room: number for number, rooms in enumerate(floors) for room in rooms}
    found = []
    for name, targets in arrows().items():
        if not name.startswith(f"{top}."):
            continue
        here = name.removeprefix(f"{top}.").split(".")[0]
        assert here in floor, f"{name}: on which floor is {here}?"
        for target, line in targets.items():
            there = target.removeprefix(f"{top}.").split(".")[0]
            inside = target.startswith(f"{top}.") and there != here
            if inside and floor[there] >= floor[here] and FLOOR.get(here) != FLOOR["spec"]:
                path = modules()[name].relative_to(ROOT)
                found.append(f"{path}:{line}: {here} -> {target}")
    return found


@pytest.mark.parametrize(
    ("top", "floors"),
    [("flashllm", FLOORS), ("flashllm.ui", UI_FLOORS), ("flashllm.cli", CLI_FLOORS)],
)
def test_arrows_between_rooms_go_down(top: str, floors: tuple[tuple[str, ...], ...]) -> None:
    assert rising(top, floors) == []


def test_few_modules_are_loose() -> None:
    loose = {path.stem for path in (ROOT / "flashllm").glob("*.py")} - {"__init__", "__main__"}
    assert len(loose) <= LOOSE_MAX, sorted(loose)


def test_every_room_says_what_it_is_for() -> None:
    for folder in FOLDERS:
        for path in [(ROOT / folder), *(ROOT / folder).rglob("*/")]:
            if not any(path.glob("*.py")):
                continue
            text = (path / "__init__.py").read_text("utf-8")
            assert ast.get_docstring(ast.parse(text)), path
