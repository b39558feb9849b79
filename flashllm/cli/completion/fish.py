"""Completion in fish."""

from __future__ import annotations

from flashllm.cli.completion.words import Entry, Flag, Value

_SCRIPT = """\
# Completion of flashllm in fish; made by `flashllm completion fish`.
function __flashllm_command
    set -l command ""
    for word in (commandline -opc)[2..-1]
        switch "$command|$word"
@COMMANDS@
        end
    end
    echo "$command"
end
function __flashllm_at
    set -l command (__flashllm_command)
    test "$command" = "$argv"
end
function __flashllm_sessions
    set -l program (commandline -opc)[1]
    $program completion fish --sessions 2>/dev/null
end
function __flashllm_names
    set -l program (commandline -opc)[1]
    $program completion fish $argv 2>/dev/null
end
complete -c flashllm -f
@ENTRIES@
"""


_LOOKS = {
    "": "",
    "files": "-F",
    "directories": "-a '(__fish_complete_directories)'",
    "sessions": "-a '(__flashllm_sessions)'",
    "models": "-a '(__fish_complete_directories) (__flashllm_names --models)'",
    "checkpoints": "-a '(__fish_complete_path) (__flashllm_names --checkpoints)'",
    "sources": "-a '(__fish_complete_path) (__flashllm_names --models --checkpoints)'",
    "model_files": "-a '(__fish_complete_path) (__flashllm_names --models)'",
}


def script(entries: list[Entry], default: str) -> str:
    """The script; `default` is the command that a line without one means."""
    commands = [
        f"case '{' '.join(entry.words[:-1])}|{entry.words[-1]}'; set command '{entry.path}'"
        for entry in entries
        if entry.words
    ]
    commands.append(f"case '|-*'; set command {default}")
    lines = "\n".join(" " * 12 + line for line in commands)
    completions = "\n".join(line for entry in entries for line in _entry(entry))
    return _SCRIPT.replace("@COMMANDS@", lines).replace("@ENTRIES@", completions)


def _entry(entry: Entry) -> list[str]:
    start = f"complete -c flashllm -n {_quote(f'__flashllm_at {entry.path}'.rstrip())}"
    lines = [f"{start} -a {name} -d {_quote(text)}" for name, text in entry.commands]
    lines += [f"{start} {_offer(value)}" for value in entry.values if _offer(value)]
    return lines + [f"{start} {_flag(flag)} -d {_quote(flag.help)}" for flag in entry.flags]


def _flag(flag: Flag) -> str:
    spellings = " ".join(
        f"-l {spelling[2:]}" if spelling.startswith("--") else f"-s {spelling[1:]}"
        for spelling in flag.spellings
    )
    if flag.value is None:
        return spellings
    # With -r alone files are offered, whatever the value is.
    takes = "-r" if flag.value.places == "files" else "-x"
    return f"{spellings} {takes} {_offer(flag.value)}".rstrip()


def _offer(value: Value) -> str:
    parts = [f"-a {_quote(' '.join(value.choices))}"] if value.choices else []
    return " ".join([*parts, _LOOKS[value.places]]).strip()


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
