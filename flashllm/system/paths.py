"""Paths of the user's files: below FLASHLLM_HOME, else where this system keeps such files.

Nothing is created here. platformdirs is loaded only when a path is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path

APPLICATION = "flashllm"


def _home() -> Path | None:
    home = os.environ.get("FLASHLLM_HOME")
    return Path(home) if home else None


def config_file() -> Path:
    """The user's own settings; the program only reads it."""
    import platformdirs

    return (_home() or Path(platformdirs.user_config_dir(APPLICATION))) / "config.toml"


def data_dir() -> Path:
    """Directory of data that cannot be made again: conversations, and converted models."""
    import platformdirs

    return _home() or Path(platformdirs.user_data_dir(APPLICATION))


def database_file() -> Path:
    """The conversations."""
    return data_dir() / "sessions.db"


def history_file() -> Path:
    """The history of the prompt."""
    return data_dir() / "history.jsonl"


def models_dir() -> Path:
    """The default directory of converted models."""
    return data_dir() / "models"


def cache_dir() -> Path:
    """Directory of files that can be made again: the demo, profiles of disks."""
    import platformdirs

    return _home() or Path(platformdirs.user_cache_dir(APPLICATION))


def kept_kv_dir() -> Path:
    """Directory of the keys and values of earlier contexts."""
    return cache_dir() / "kv"


def log_file() -> Path:
    """The chat's log."""
    import platformdirs

    return (_home() or Path(platformdirs.user_log_dir(APPLICATION))) / "flashllm.log"
