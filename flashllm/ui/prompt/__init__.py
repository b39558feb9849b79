"""The prompt, in which messages are typed: history, suggestions, external editor."""
