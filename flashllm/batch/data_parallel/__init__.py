"""Rows of a batch on several workers, each of which has a model of its own on its own disk.

Ray starts the workers and carries rows and answers. Not for one model that is cut into stages:
that is `flashllm.engine.pipeline`.
"""
