"""What can be asked for in the chat: its slash commands and its keys, as tables."""
