"""Widgets that know nothing of the chat."""
