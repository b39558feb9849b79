"""Settings: a flag beats the environment, that the user's config.toml, and that the default."""
