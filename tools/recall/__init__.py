"""A small model that looks keys up in its context, made to compare policies of keys and values.

It is no model of language: what it knows is where in a long context the answer is, which is what
policies that leave tokens out may lose. Trained on a processor or, in minutes, on a GPU.
"""
