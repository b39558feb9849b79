"""Where files of the user lie: below FLASHLLM_HOME, else where this system keeps such files.

Nothing is created by asking. platformdirs is loaded only where FLASHLLM_HOME does not say all.
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
    """What nobody could make again: conversations, and models that were converted."""
    import platformdirs

    return _home() or Path(platformdirs.user_data_dir(APPLICATION))


def database_file() -> Path:
    """The conversations."""
    return data_dir() / "sessions.db"


def history_file() -> Path:
    """What was typed into the prompt."""
    return data_dir() / "history.jsonl"


def models_dir() -> Path:
    """Models that were converted without saying where to."""
    return data_dir() / "models"


def cache_dir() -> Path:
    """What can be made again: the demo, profiles of disks."""
    import platformdirs

    return _home() or Path(platformdirs.user_cache_dir(APPLICATION))


def log_file() -> Path:
    """What the chat did, for when something went wrong."""
    import platformdirs

    return (_home() or Path(platformdirs.user_log_dir(APPLICATION))) / "flashllm.log"
