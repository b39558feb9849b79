"""Resolves options: a flag wins, then the environment, then config.toml, then the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flashllm.errors import FlashllmError, UsageError
from flashllm.options import ModelOptions
from flashllm.settings.file import Said, collected, read_config
from flashllm.settings.nearest import nearest
from flashllm.settings.options import CHAT_OPTIONS, OPTIONS, Option
from flashllm.system import paths

VARIABLE_PREFIX = "FLASHLLM_"
OTHER_VARIABLES = ("FLASHLLM_HOME", "FLASHLLM_CORE", "FLASHLLM_IO", "FLASHLLM_ISA")
"""Variables that are no options: where the user's files are, and what the core uses."""
Origin = Literal["flag", "env", "file", "default"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it came from."""

    value: Any
    origin: Origin
    place: str = ""
    """The flag, the variable, or `FILE:LINE`."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of the terminal application; empty texts and False are the defaults."""

    system: str = ""
    no_save: bool = False
    inline: bool = False
    theme: str = ""
    show_io: bool = False
    editor: str = ""
    model_dirs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of all options; frozen, so `with_flags` returns a copy."""

    file: Path
    """config.toml, which need not exist."""
    settings: Mapping[str, Setting]
    keys: Mapping[str, Said] = field(default_factory=dict)
    """Keys of the chat, by the name of their action; not checked yet."""
    remarks: tuple[str, ...] = ()
    """What the user should know: variables that do not exist, and settings that were left out."""

    def value(self, name: str) -> Any:
        """The value of an option, by `Option.name`."""
        return self.settings[name].value

    def origin(self, name: str) -> Origin:
        """Where the value comes from."""
        return self.settings[name].origin

    def place(self, name: str) -> str:
        """The flag, the variable or `FILE:LINE` that set it; empty for a default."""
        return self.settings[name].place

    @property
    def chat(self) -> ChatSettings:
        """Settings of the terminal application."""
        return ChatSettings(**{option.name: self.value(option.name) for option in CHAT_OPTIONS})

    @property
    def model_options(self) -> ModelOptions:
        """How models are opened."""
        return ModelOptions(
            memory=self.value("memory"),
            select=self.value("select"),
            policy=self.value("policy"),
            window=self.value("window"),
            io_threads=self.value("io_threads"),
            overlap=self.value("overlap"),
            verify=self.value("verify"),
            prompt_neurons=self.value("prompt_neurons"),
            arithmetic=self.value("arithmetic"),
            direct=not self.value("no_direct"),
            context=self.value("ctx_size"),
            kv_dtype=self.value("kv_dtype"),
            kv_memory=self.value("kv_memory"),
            kv_dir=self.value("kv_dir"),
            kv_victims=self.value("kv_victims"),
            profile=self.value("profile"),
            kv_policy=self.value("kv_policy"),
            kv_budget=self.value("kv_budget"),
            kv_alpha=self.value("kv_alpha"),
            kv_recall=self.value("kv_recall"),
            spec_start_layer=self.value("spec_start_layer"),
            keep_kv=self.value("keep_kv"),
            device=None if self.value("device") == "none" else self.value("device"),
            device_memory=self.value("device_memory"),
        )

    def with_flags(self, given: Mapping[str, Any]) -> Settings:
        """A copy with the flags of the command line; None means that a flag was not given."""
        flags = {option.name: (option.flags or (option.metavar,))[-1] for option in OPTIONS}
        said = {
            name: Setting(value, "flag", flags[name])
            for name, value in given.items()
            if value is not None
        }
        return replace(self, settings={**self.settings, **said})


def load_settings(
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    problems: list[FlashllmError] | None = None,
) -> Settings:
    """Settings without flags; `ConfigError` names a line of the file, `UsageError` a variable.

    With `problems`, errors are put there, and the settings that they are about are left out.
    """
    environment = os.environ if environment is None else environment
    config = read_config(paths.config_file() if file is None else file, problems)
    settings = {}
    for option in OPTIONS:
        said, given = config.values.get(option.name), None
        with collected(problems):
            given = _from_environment(option, environment)
        if given is not None:
            settings[option.name] = given
        elif said is not None:
            settings[option.name] = Setting(said.value, "file", said.place)
        else:
            settings[option.name] = Setting(option.default, "default")
    remarks = [
        *unknown_variables(environment),
        *(f"{error} (left out)" for error in problems or ()),
    ]
    return Settings(config.path, settings, config.keys, tuple(remarks))


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each FLASHLLM_ variable that nothing reads."""
    known = (*(option.variable for option in OPTIONS), *OTHER_VARIABLES)
    ends = [name.removeprefix(VARIABLE_PREFIX) for name in known]
    found = []
    for name in sorted(environment):
        if name.startswith(VARIABLE_PREFIX) and name not in known:
            near = nearest(name.removeprefix(VARIABLE_PREFIX), ends)
            meant = f"did you mean {VARIABLE_PREFIX}{near[0]}?" if near else "it is ignored"
            found.append(f"{name}: there is no such variable; {meant}")
    return found


def _from_environment(option: Option, environment: Mapping[str, str]) -> Setting | None:
    text = environment.get(option.variable, "")
    if not text:
        return None
    try:
        return Setting(option.parse(text), "env", option.variable)
    except UsageError as error:
        raise UsageError(f"{option.variable}: {error}") from error
