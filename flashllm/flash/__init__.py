"""The files of a converted model: their layout, opening and reading them.

Goals: positioned direct reads into memory that is allocated once; every size and offset checked.
Not goals: what stays in memory (`weight_cache`), tokens, families of models, torch.
"""
