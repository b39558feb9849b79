"""Where a message is typed: history, suggestions, an editor beside it."""
