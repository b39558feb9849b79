"""Settings: a flag wins over the environment, which wins over config.toml, then the default."""
