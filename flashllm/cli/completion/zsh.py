"""Completion in zsh."""

from __future__ import annotations

from flashllm.cli.completion.words import Entry, Flag, Value

_SCRIPT = """\
#compdef flashllm
# Completion of flashllm in zsh; made by `flashllm completion zsh`.
_flashllm_sessions() {
    local -a found
    found=(${(f)"$($program completion zsh --sessions 2>/dev/null)"})
    compadd "$@" -- ${found%%$'\t'*}
}
_flashllm_names() {
    local -a found
    found=(${(f)"$($program completion zsh $@ 2>/dev/null)"})
    compadd -- $found
}
_flashllm() {
    local command="" program=$words[1] word
    local -i depth=0
    for word in "${(@)words[2,CURRENT-1]}"; do
        case "$command|$word" in
@COMMANDS@
        esac
    done
    # What follows counts from the command.
    shift $depth words
    (( CURRENT -= depth ))
    case "$command" in
@ENTRIES@
    esac
}
# Read by the shell as a completion of its own, or sourced.
if [ "${funcstack[1]-}" = "_flashllm" ]; then _flashllm "$@"; else compdef _flashllm flashllm; fi
"""


_LOOKS = {
    "": "",
    "files": "_files",
    "directories": "_files -/",
    "sessions": "_flashllm_sessions",
    "models": "{_files -/; _flashllm_names --models}",
    "checkpoints": "{_files; _flashllm_names --checkpoints}",
    "sources": "{_files; _flashllm_names --models --checkpoints}",
    "model_files": "{_files; _flashllm_names --models}",
}


def script(entries: list[Entry], default: str) -> str:
    """The script; `default` is the command that a line without one means."""
    commands = [
        f'"{" ".join(entry.words[:-1])}|{entry.words[-1]}")'
        f' command="{entry.path}"; depth={len(entry.words)} ;;'
        for entry in entries
        if entry.words
    ]
    commands.append(f'"|-"*) command="{default}" ;;')
    lines = "\n".join(" " * 12 + line for line in commands)
    blocks = "\n".join(_entry(entry) for entry in entries)
    return _SCRIPT.replace("@COMMANDS@", lines).replace("@ENTRIES@", blocks)


def _entry(entry: Entry) -> str:
    specs = [spec for flag in entry.flags for spec in _flag(flag)]
    if entry.commands:
        listed = " ".join(f'{name}\\:"{_inner(text)}"' for name, text in entry.commands)
        specs.append(_quote(f"1:command:(({listed}))"))
    specs += [_quote(_place(value)) for value in entry.values]
    joined = " \\\n            ".join(specs)
    return f'    "{entry.path}")\n        _arguments -s \\\n            {joined} ;;'


def _flag(flag: Flag) -> list[str]:
    """A specification for each spelling, which leaves out the others once it is there."""
    value = "" if flag.value is None else f":{_inner(flag.value.name)}:{_action(flag.value)}"
    others = "*" if flag.repeats else f"({' '.join(flag.spellings)})"
    text = _inner(flag.help).replace("[", "\\[").replace("]", "\\]")
    return [_quote(f"{others}{spelling}[{text}]{value}") for spelling in flag.spellings]


def _place(value: Value) -> str:
    return f"{'*' if value.repeats else ''}::{_inner(value.name)}:{_action(value)}"


def _action(value: Value) -> str:
    look = _LOOKS[value.places]
    if value.choices:
        words = " ".join(value.choices)
        return f"{{compadd -- {words}; {look}}}" if look else f"({words})"
    return look or " "


def _inner(text: str) -> str:
    """Text without what has a meaning in a specification."""
    for character in '\\`"$':
        text = text.replace(character, "")
    return text.replace(":", "\\:")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
