"""A model that answers: opening it, generating, and the protocol that its users see.

Draws nothing.
"""
