"""FlexGen's published policies (arXiv 2303.06865, tables 10, 11 and 16), by model and prompt."""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.convert.families.known_shapes import describe_shape

from flashllm.planning.batch.machine import TieredMachine, known_machine
from flashllm.planning.batch.policy import BatchPolicy, Workload, parse_batch_policy
from flashllm.planning.batch.shape import BatchShape
from flashllm.planning.batch.tiered_cost import TieredModel

NEW_TOKENS = 32
PROMPTS = (256, 512, 1024)
_ROWS = """
accelerate  6.7b  4,1 2,1 1,1         100,0,100,0,100,0
accelerate  30b   16,1 8,1 4,1        0,100,100,0,100,0
accelerate  175b  4,1 2,1 1,1         0,0,100,0,100,0
deepspeed   6.7b  32,1 16,1 8,1       0,100,100,0,100,0
deepspeed   30b   12,1 4,1 2,1        0,100,100,0,100,0
deepspeed   175b  2,1 1,1 -           0,0,100,0,100,0
flexgen     6.7b  4,1 2,1 1,1         100,0,100,0,100,0
flexgen     30b   160,2 48,3 20,4     10,90,0,100,0,100 20,80,0,100,0,100 4,96,0,100,0,100
flexgen     175b  64,8 32,8 12,12     0,50,0,0,0,100
compressed  6.7b  128,1 72,1 28,1     100,0,100,0,100,0
compressed  30b   128,8 16,20 20,12   0,100,0,100,0,100 20,80,0,100,100,0 0,100,0,100,0,100
compressed  175b  96,3 48,3 12,4      0,100,0,100,0,100
"""


@dataclass(frozen=True)
class Published:
    """A policy, and what it was published for."""

    system: str
    model: str
    prompt_tokens: int
    policy: BatchPolicy

    @property
    def compress(self) -> bool:
        return self.system == "compressed"

    def model_of(self, machine: TieredMachine, cost_model: str = "overlapped") -> TieredModel:
        """The cost model that the policy is held against."""
        work = Workload(self.prompt_tokens, NEW_TOKENS)
        shape = shape_of(self.model)
        return TieredModel(shape, machine, work, self.compress, not self.compress, cost_model)

    def __str__(self) -> str:
        return f"{self.system} {self.model} {self.prompt_tokens}"


def shape_of(size: str) -> BatchShape:
    return BatchShape.of(describe_shape(f"opt-{size}"))


def t4() -> TieredMachine:
    return known_machine("t4-paper")


def _published() -> list[Published]:
    found = []
    for line in _ROWS.strip().splitlines():
        system, model, *words = line.split()
        blocks, splits = words[:3], words[3:] * (3 if len(words) == 4 else 1)
        for prompt, block, split in zip(PROMPTS, blocks, splits, strict=True):
            if block != "-":
                policy = parse_batch_policy(f"{block},{split}")
                found.append(Published(system, model, prompt, policy))
    return found


PUBLISHED = _published()
