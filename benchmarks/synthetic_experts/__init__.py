"""GGUF files of mixtures of experts with random weights, whose routing is drawn from recorded ones.

Goal: the bytes of a real model, and a router that asks for experts as a real one was seen to do.
Not a goal: text that means anything.
"""
