"""How the layers of a model are cut into stages, and what all stages have to agree on."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import flashllm
from flashllm.errors import UsageError
from flashllm.flash.store import Store
from flashllm.options import DEFAULT_KV_POLICY, ModelOptions
from flashllm.planning.model_facts import choose_selector
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.spec import ModelSpec

STAGES_MAX = 256


def stage_layers(spec: ModelSpec, stages: int) -> list[range]:
    """The layers of each stage: l/m of them, the first having fewer if any have.

    Source: FlexGen (arXiv 2303.06865), section 4.4. `UsageError` for more stages than there can be.
    """
    if not 1 < stages <= min(spec.n_layers, STAGES_MAX):
        most = min(spec.n_layers, STAGES_MAX)
        raise UsageError(f"--stages {stages}: this model's layers make 2 to {most} stages")
    dense = spec.dense_layers
    counts = _shares(spec.n_layers, stages)
    if counts[0] <= dense:
        # A stage has bundles, and the layers without them are first, and small.
        counts = [dense + 1, *_shares(spec.n_layers - dense - 1, stages - 1)]
    if 0 in counts:
        raise UsageError(
            f"--stages {stages}: the first {dense} layers have no experts, and each stage needs a"
            f" layer that has; at most {spec.n_layers - dense} stages can"
        )
    ends = list(itertools.accumulate(counts))
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _shares(layers: int, stages: int) -> list[int]:
    """Layers of each stage; embedding and head are beside the first and the last one's."""
    each, more = divmod(layers, stages)
    order = [*range(1, stages), 0]
    return [each + (order.index(stage) < more) for stage in range(stages)]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the first stage tells the others: answers, or the course of a call, depend on it."""

    version: str
    """Of flashllm."""
    model_hash: str
    select: str
    kv_dtype: str | None
    context: int | None
    contexts: int
    chunk_tokens: int
    prompt_neurons: str | None
    arithmetic: str | None

    @classmethod
    def of(cls, store: Store, model_hash: str, options: ModelOptions) -> Agreement:
        """Of the first stage's options.

        `UsageError` for a selector that the model lacks, and where tokens do not see all before
        them: what they see is chosen by the layer before, which another stage may have.
        """
        if options.kv_selection.policy != DEFAULT_KV_POLICY:
            raise UsageError(
                f"--kv-policy {options.kv_selection.policy} is of one process; leave it out, or"
                " --stages"
            )
        chunk = PrefillShape.of(store.model_spec, store.header.stride).tokens
        return cls(
            flashllm.__version__,
            model_hash,
            choose_selector(store, options.select),
            options.kv_dtype,
            options.context,
            options.contexts,
            options.chunk_tokens or chunk,
            options.prompt_neurons,
            options.arithmetic,
        )

    def check(self, model_hash: str) -> None:
        """`UsageError` where what is here is something else."""
        if self.version != flashllm.__version__:
            raise UsageError(
                f"flashllm is {flashllm.__version__} here and {self.version} at the first stage;"
                " install the same version everywhere"
            )
        if self.model_hash != model_hash:
            raise UsageError(
                f"the model is another one than at the first stage: its manifest is"
                f" {model_hash[:12]}, and not {self.model_hash[:12]}. Copy the same model here"
            )

    def options(self, own: ModelOptions) -> ModelOptions:
        """A stage's own options, with what is agreed on."""
        agreed: dict[str, Any] = asdict(self)
        del agreed["version"], agreed["model_hash"]
        return own.having(keep_kv=None, **agreed)
