"""docs/json.md as tables, and objects held against them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
ANY_KEY = "*"
INCLUDED = "..."
_REFERENCE = re.compile(r"\[([^\]]+)\]\(#([^)]+)\)")
_COMMAND = re.compile(r"`([^`]+)`(?:, lines of `([^`]+)`)?")


@dataclass(frozen=True)
class Row:
    table: str
    names: tuple[str, ...]
    """Usually one; several where a field is called by what it is of."""
    type: str
    """Without "optional"; references as [name]."""
    is_optional: bool


@dataclass
class Page:
    """Tables by heading: `run --json`, `run --jsonl, token`, or the name of a shared object."""

    tables: dict[str, list[Row]]
    shared: set[str]
    seen: set[Row] = field(default_factory=set)
    """Rows whose field was there in some object."""
    problems: list[str] = field(default_factory=list)
    checked: set[str] = field(default_factory=set)
    """Commands whose objects were compared."""

    @property
    def commands(self) -> list[str]:
        return [name for name in self.tables if name not in self.shared]

    def check(self, table: str, values: dict[str, Any]) -> None:
        """Compares an object, as a command printed it, with its table; notes what differs."""
        assert values.get("schema") == 1, "the number comes with every object"
        assert next(iter(values)) == "schema"
        self._object(table, {k: v for k, v in values.items() if k != "schema"}, table)

    def not_seen(self, table: str) -> list[str]:
        """Fields of a table that no object had."""
        missing = [row for row in self.tables[table] if row not in self.seen]
        return [f"{table}: {' or '.join(row.names)}" for row in missing]

    def _object(self, table: str, values: dict[str, Any], where: str) -> None:
        rows = {name: row for row in self._with_included(table) for name in row.names}
        if ANY_KEY in rows:
            self.seen.add(rows[ANY_KEY])
            for key, value in values.items():
                self._value(rows[ANY_KEY].type, value, f"{where}.{key}")
            return
        self._level(rows, "", values, where)
        for name, row in rows.items():
            if not (row.is_optional or _has(values, name)):
                self.problems.append(f"{where}: lacks {name}, which the page has")

    def _level(self, rows: dict[str, Row], prefix: str, values: dict[str, Any], where: str) -> None:
        for key, value in values.items():
            name = prefix + key
            if name in rows:
                self.seen.add(rows[name])
                self._value(rows[name].type, value, f"{where}.{name}")
            elif isinstance(value, dict) and any(row.startswith(f"{name}.") for row in rows):
                self._level(rows, f"{name}.", value, where)
            else:
                self.problems.append(f"{where}.{name}: is printed and not on the page")

    def _with_included(self, table: str) -> list[Row]:
        rows = []
        for row in self.tables[table]:
            if row.names == (INCLUDED,):
                self.seen.add(row)
                rows += self._with_included(_names(row.type)[0])
            else:
                rows.append(row)
        return rows

    def _value(self, expected: str, value: Any, where: str) -> None:
        if expected.endswith(" or null"):
            # Of a list or a map, the items may be null, or all of it.
            inner = expected.removesuffix(" or null")
            if value is None:
                return
            for kind in ("list of ", "map of "):
                if inner.startswith(kind):
                    self._items(kind, f"{inner.removeprefix(kind)} or null", value, where)
                    return
            self._value(inner, value, where)
        elif expected.startswith(("list of ", "map of ")):
            kind = "list of " if expected.startswith("list") else "map of "
            self._items(kind, expected.removeprefix(kind), value, where)
        elif expected.startswith("["):
            if isinstance(value, dict):
                self._object(expected.strip("[]"), value, where)
            else:
                self.problems.append(f"{where}: is {value!r}, not an object")
        elif not _TYPES[expected](value):
            self.problems.append(f"{where}: is {value!r:.40}, not {expected}")

    def _items(self, kind: str, expected: str, value: Any, where: str) -> None:
        if kind == "list of " and isinstance(value, list):
            for one in value:
                self._value(expected, one, f"{where}[]")
        elif kind == "map of " and isinstance(value, dict):
            for key, one in value.items():
                self._value(expected, one, f"{where}.{key}")
        else:
            self.problems.append(f"{where}: is {value!r:.40}, not a {kind}{expected}")


_TYPES = {
    "int": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "text": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "any": lambda value: True,
}


def _has(values: Any, name: str) -> bool:
    """Whether an object has a field; names may contain dots themselves."""
    if not isinstance(values, dict):
        return False
    if name in values:
        return True
    first, _, rest = name.partition(".")
    return bool(rest) and _has(values.get(first), rest)


def _names(type_: str) -> list[str]:
    return re.findall(r"\[([^\]]+)\]", type_)


def read_page() -> Page:
    """The page's tables; asserts that every row has four cells, and that references lead there."""
    text = PAGE.read_text("utf-8")
    commands, shared = text.split("\n# Shared objects\n")
    tables: dict[str, list[Row]] = {}
    for part, is_shared in ((commands, False), (shared, True)):
        for section in part.split("\n## ")[1:]:
            heading, _, body = section.partition("\n")
            name = heading
            if not is_shared:
                command, lines = _COMMAND.fullmatch(heading).groups()
                name = f"{command}, {lines}" if lines else command
            assert name not in tables, f"{name}: is there twice"
            tables[name] = list(_rows(name, body))
    names = {heading for heading in tables if "--" not in heading}
    for rows in tables.values():
        for row in rows:
            assert set(_names(row.type)) <= names, row
    return Page(tables, names)


def _rows(table: str, body: str) -> list[Row]:
    lines = [line for line in body.splitlines() if line.startswith("|")]
    assert lines[0] == "| field | type | unit | meaning |", table
    rows = []
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, line
        assert cells[3], f"{line}: has no meaning"
        names, type_ = tuple(re.findall("`([^`]+)`", cells[0])), cells[1]
        for shown, anchor in _REFERENCE.findall(type_):
            assert anchor == shown.replace(" ", "-"), line
        type_ = _REFERENCE.sub(r"[\1]", type_)
        is_optional = type_.endswith(", optional")
        rows.append(Row(table, names, type_.removesuffix(", optional"), is_optional))
    names = [name for row in rows for name in row.names]
    assert len(set(names)) == len(names), f"{table}: a field is there twice"
    return rows
