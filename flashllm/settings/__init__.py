"""Settings: a flag beats the environment, that the user's config.toml, and that the default."""

from flashllm.settings.resolve import ChatSettings, Settings, load_settings

__all__ = ["ChatSettings", "Settings", "load_settings"]
