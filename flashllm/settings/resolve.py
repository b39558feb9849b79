"""Resolves options: a flag wins, then the environment, then config.toml, then the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flashllm.errors import UsageError
from flashllm.options import ModelOptions
from flashllm.settings.file import Said, read_config
from flashllm.settings.options import CHAT_OPTIONS, OPTIONS, Option
from flashllm.system import paths

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
            direct=not self.value("no_direct"),
            context=self.value("ctx_size"),
            kv_dtype=self.value("kv_dtype"),
            profile=self.value("profile"),
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
    environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Settings without flags; `ConfigError` names a line of the file, `UsageError` a variable."""
    environment = os.environ if environment is None else environment
    config = read_config(paths.config_file() if file is None else file)
    settings = {}
    for option in OPTIONS:
        said = config.values.get(option.name)
        if (given := _from_environment(option, environment)) is not None:
            settings[option.name] = given
        elif said is not None:
            settings[option.name] = Setting(said.value, "file", said.place)
        else:
            settings[option.name] = Setting(option.default, "default")
    return Settings(config.path, settings, config.keys)


def _from_environment(option: Option, environment: Mapping[str, str]) -> Setting | None:
    text = environment.get(option.variable, "")
    if not text:
        return None
    try:
        return Setting(option.parse(text), "env", option.variable)
    except UsageError as error:
        raise UsageError(f"{option.variable}: {error}") from error
