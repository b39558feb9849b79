"""What a hostile model could say to a terminal: escape sequences of every kind, each with a secret.

`SECRET` and the number stand inside the sequence, so none of it may ever reach the terminal.
"""

from __future__ import annotations

from dataclasses import dataclass

SECRET = "7731"
ESC, BEL, ST, CAN = "\x1b", "\x07", "\x1b\\", "\x18"
CSI_FINALS = "ABCDEFGHIJKLMPSTXZ`abcdefghilmnpqrstuvwxyz{|}~@"
CSI_PREFIXES = ("?", ">", "=", "!", "<")
OSC_NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    50,
    51,
    52,
    99,
    104,
    110,
    133,
    633,
    777,
    1337,
)
STRING_ENDS = (BEL, ST, "\x9c")
ESCAPE_ALONE = "c78=>DEHMNOZno|}~6FlmV"
CHARSETS = ("(0", ")0", "*0", "+0", "#8", "%G", "%@", " F", "(B")
CONTROLS = "\x00\x01\x05\x07\x08\x0b\x0c\x0e\x0f\x11\x13\x7f\x84\x85\x88\x8d\x8e\x8f\x9a"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@dataclass(frozen=True)
class Payload:
    """What is said; behind it a `guard` ends what a terminal would still be reading."""

    name: str
    text: str
    guard: str = ""


def _secret(number: int) -> str:
    return f"{SECRET}{number:04d}"


def _all() -> list[Payload]:
    found: list[Payload] = []

    def add(kind: str, text: str, guard: str = "") -> None:
        found.append(Payload(f"{kind}-{len(found)}", text, guard))

    def secret() -> str:
        return _secret(len(found))

    for introducer in (f"{ESC}[", "\x9b"):
        for final in CSI_FINALS:
            add("csi", f"{introducer}{secret()}{final}")
        for prefix in CSI_PREFIXES:
            add("csi-private", f"{introducer}{prefix}{secret()};25h")
    for introducer in (f"{ESC}]", "\x9d"):
        for number, kind in enumerate(OSC_NUMBERS):
            end = STRING_ENDS[number % len(STRING_ENDS)]
            add("osc", f"{introducer}{kind};{secret()}{end}")
            add("osc-fields", f"{introducer}{kind};c;{secret()};https://x.example{end}")
    for introducer in ("P", "X", "^", "_"):
        for opening in (ESC + introducer, chr(ord(introducer) + 0x40)):
            for end in (ST, "\x9c"):
                add("string", f"{opening}+q{secret()}{end}")
                add("string-with-escapes", f"{opening}{ESC}[{secret()}m{end}", CAN)
    for opening in (f"{ESC}]0;", "\x9d0;", f"{ESC}P", "\x90", f"{ESC}_", "\x9f", f"{ESC}[", "\x9b"):
        add("unterminated", f"{opening}{secret()}", CAN)
    for final in ESCAPE_ALONE:
        add("escape", f"{ESC}{final}")
    for sequence in CHARSETS:
        add("charset", f"{ESC}{sequence}")
    for control in CONTROLS:
        add("control", control)
    for character in BIDI:
        add("bidi", character)
    add("double", f"{ESC}{ESC}[{secret()}m")
    add("interrupted", f"{ESC}]0;{secret()}{ESC}]52;c;{secret()}{BEL}")
    add("aborted", f"{ESC}[{secret()}{CAN}")
    add("substituted", f"{ESC}]2;{secret()}\x1a")
    return found


PAYLOADS = _all()


def pieces(number: int, payload: Payload) -> list[str]:
    """A payload as tokens, cut at another place each time, between two words of its own."""
    cut = number % (len(payload.text) + 1)
    return [f"a{number}b", payload.text[:cut], payload.text[cut:], payload.guard, f"c{number}d "]
