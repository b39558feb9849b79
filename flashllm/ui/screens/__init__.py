"""Pages over the chat: help, models, conversations, settings, converting."""
