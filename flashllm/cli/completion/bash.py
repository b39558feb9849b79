"""Completion in bash, from 3.2, which macOS has."""

from __future__ import annotations

import shlex

from flashllm.cli.completion.words import Entry, Value

_SCRIPT = """\
# Completion of flashllm in bash; made by `flashllm completion bash`.
_flashllm_words() {
    local word
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$1" -- "$current")
}
_flashllm_paths() {
    local word
    compopt -o filenames 2>/dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen "$1" -- "$current")
}
_flashllm_names() {
    local word
    compopt -o filenames 2>/dev/null  # a name may need quotes
    while IFS= read -r word; do
        if [[ $word == "$current"* ]]; then COMPREPLY+=("$word"); fi
    done < <("${COMP_WORDS[0]}" completion bash "$@" 2>/dev/null)
}
_flashllm_sessions() {
    local word
    compopt -o filenames 2>/dev/null  # a name may need quotes
    while IFS= read -r word; do
        word="${word%%$'\t'*}"
        if [[ $word == "$current"* ]]; then COMPREPLY+=("$word"); fi
    done < <("${COMP_WORDS[0]}" completion bash --sessions 2>/dev/null)
}
_flashllm() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" command="" word
    COMPREPLY=()
    # bash splits --flag=value into three words.
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" ]] && ((COMP_CWORD > 1)); then
        previous="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$command|$word" in
@COMMANDS@
        esac
    done
    case "$command|$previous" in
@VALUES@
    esac
    if [[ $current == -* ]]; then
        case "$command" in
@FLAGS@
        esac
        return
    fi
    case "$command" in
@PLACES@
    esac
}
complete -F _flashllm flashllm
"""


_LOOKS = {
    "": "",
    "files": "_flashllm_paths -f; ",
    "directories": "_flashllm_paths -d; ",
    "sessions": "_flashllm_sessions; ",
    "models": "_flashllm_paths -d; _flashllm_names --models; ",
    "checkpoints": "_flashllm_paths -f; _flashllm_names --checkpoints; ",
    "sources": "_flashllm_paths -f; _flashllm_names --models --checkpoints; ",
    "model_files": "_flashllm_paths -f; _flashllm_names --models; ",
}


def script(entries: list[Entry], default: str) -> str:
    """The script; `default` is the command that a line without one means."""
    commands = [
        f'"{" ".join(entry.words[:-1])}|{entry.words[-1]}") command="{entry.path}" ;;'
        for entry in entries
        if entry.words
    ]
    commands.append(f'"|-"*) command="{default}" ;;')
    flags = [f'"{entry.path}") _flashllm_words {_quote(entry.spellings)} ;;' for entry in entries]
    return (
        _SCRIPT.replace("@COMMANDS@", _lines(commands, 12))
        .replace("@VALUES@", _lines([line for entry in entries[1:] for line in _values(entry)], 8))
        .replace("@FLAGS@", _lines(flags, 12))
        .replace("@PLACES@", _lines([line for entry in entries for line in _places(entry)], 8))
    )


def _values(entry: Entry) -> list[str]:
    """What comes after an option; nothing for a value that nobody can guess."""
    lines = []
    for flag in entry.flags:
        if flag.value is not None:
            pattern = "|".join(f'"{entry.path}|{spelling}"' for spelling in flag.spellings)
            lines.append(f"{pattern}) {_offer(flag.value)}return ;;")
    return lines


def _places(entry: Entry) -> list[str]:
    names = [name for name, _ in entry.commands]
    offers = f"_flashllm_words {_quote(names)}; " if names else ""
    for value in entry.values:
        offer = _offer(value)
        offers += "" if offer in offers else offer
    return [f'"{entry.path}") {offers};;'] if offers else []


def _offer(value: Value) -> str:
    words = f"_flashllm_words {_quote(value.choices)}; " if value.choices else ""
    return words + _LOOKS[value.places]


def _quote(words: list[str] | tuple[str, ...]) -> str:
    return shlex.quote(" ".join(words))


def _lines(lines: list[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)
