"""Bytes: the layout on flash, reading it, and what is kept of it in memory.

Goals: positioned direct reads into memory that is allocated once; every size and offset checked.
Not goals: tokens, families of models, torch. Nothing here imports any of them.
"""
