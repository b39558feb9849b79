"""What a model is, by features and never by the name of its family.

One frozen description, made by the converter, stored in the manifest, read by the runtime.
"""

from flashllm.spec.checks import MAX_EXPERTS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH
from flashllm.spec.experts import MoeSpec, Score
from flashllm.spec.model import SPARSE_ACTIVATIONS, ModelSpec
from flashllm.spec.rope import Rope

__all__ = [
    "MAX_EXPERTS",
    "MAX_LAYERS",
    "MAX_POSITIONS",
    "MAX_VOCAB",
    "MAX_WIDTH",
    "SPARSE_ACTIVATIONS",
    "ModelSpec",
    "MoeSpec",
    "Rope",
    "Score",
]
