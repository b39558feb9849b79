"""The terminal itself: how it was at the start, how it is given back, and a way out of a hang.

Knows nothing of the chat, and draws nothing.
"""
