"""The messages on the screen: turns, answers, their Markdown."""
