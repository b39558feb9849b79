"""Evaluation: what selecting neurons costs in quality, and what it saves in bytes.

Goal: the numbers by which a model's sparsity is judged, on a text and on questions of the user's
own, always compared with the dense model. Not here: terminals, and speed, which `flashllm run` and
the benchmarks measure. Source: LLM in a flash (arXiv 2312.11514), table 1 and figures 3a, 4a and 5.
"""

from .model import EvaluatedModel
from .tasks import TaskSettings, evaluate_tasks
from .texts import TextSettings
from .whole import evaluate_text

__all__ = ["EvaluatedModel", "TaskSettings", "TextSettings", "evaluate_tasks", "evaluate_text"]
