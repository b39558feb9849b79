"""Where weights, keys and values, and activations of a block of prompts go, and what that takes.

Pure arithmetic from a model's shape and a machine's rates: costs of a policy, and the search for
the best one. Nothing here runs a model or sees a tensor. Source: FlexGen, arXiv 2303.06865.
"""
