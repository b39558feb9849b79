"""The engine: opens a model, generates answers, and defines the protocol that its users see.

Draws nothing.
"""
