"""From a profile, a model and a memory ceiling to a plan.

Reads no weights and computes no tokens.
"""
