"""The chat's slash commands and keys, as tables."""
