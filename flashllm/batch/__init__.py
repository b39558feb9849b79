"""Many prompts from a file, and their answers into another one.

Reads rows, writes answers in their order, continues after whatever ended it. Not for deciding in
which order tokens are computed: that is a schedule, which gets rows as ids and knows no files.
"""
