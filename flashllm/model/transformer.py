"""The weights of a model that stay in DRAM, and its forward pass over any context.

    ids -> embed -> [ attention, feed-forward ] x layers -> norm -> head -> logits

All models share this pass; models differ by features of the spec. Nothing here changes while it is
used: the state of a sequence is its `Context`, and a schedule says in which order tokens go
through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids, unwarned
from flashllm.errors import ModelError
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.tensor_table import EMBEDDING, HEAD, POSITIONS
from flashllm.large_arrays import Floats
from flashllm.model.attention import Span
from flashllm.model.encoded_rows import FlashTable, Table
from flashllm.model.layer import ResidentParts
from flashllm.model.layer_inputs import LayerInputs
from flashllm.model.products import Products
from flashllm.model.rope import Positions, Rotations
from flashllm.model.stage_link import StageLink
from flashllm.spec import ModelSpec
from flashllm.system.clock import PartClock

FeedForwardCall = Callable[[LayerInputs], Floats]
"""From what the feed-forward layer can read to its output."""
LayerObserver = Callable[[int, Floats, Floats, Floats], None]
"""Called with a layer's number and the stream as it came, behind attention, and as it left."""
BeforeAttention = Callable[[Floats, Floats], None]
"""Called with the residual stream and attention's input."""


class Transformer:
    """Embedding, blocks and head. The caller brings the feed-forward layers.

    With a link it is a stage: `spec` is that of its layers, and what it gets and gives are hidden
    states.
    """

    def __init__(
        self,
        spec: ModelSpec,
        resident: Mapping[str, RawTensor],
        kernels: core.Kernels,
        products: Products,
        clock: PartClock,
        link: StageLink | None = None,
        embedding: FlashTable | None = None,
    ) -> None:
        """The `embedding` is one that stays on flash, which is not in `resident` then."""
        self.spec = spec
        self.observer: LayerObserver | None = None
        """Who is told of each layer."""
        self._clock = clock
        self._link = link
        parts = ResidentParts(spec, resident, products, kernels)
        bundled = range(spec.dense_layers, spec.n_layers)
        self.feed_forward_weights = [parts.feed_forward(index) for index in bundled]
        """Of the layers that have bundles."""
        self._dense = [parts.dense_feed_forward(index) for index in range(spec.dense_layers)]
        is_first, is_last = link is None or link.is_first, link is None or link.is_last
        self._embedding: Table | FlashTable | None = embedding
        if is_first and embedding is None:
            self._embedding = Table(resident[EMBEDDING], kernels)
        positions = resident.get(POSITIONS)
        self._positions = None if positions is None else Table(positions, kernels)
        self._rotary = None if spec.rope is None else Positions(spec.rope, spec.window_rope)
        self._layers = [parts.layer(index) for index in range(spec.n_layers)]
        self._final_norm = parts.norm("final_norm") if is_last and spec.final_norm else None
        # A device has a copy of its own of a head that is the embedding too.
        head = "embed" if spec.tied_head and HEAD not in resident else "head"
        self._head = parts.linear(head, "head") if is_last else None
        narrow = spec.embed_dim != spec.d_model
        self._project_in = parts.linear("embed.project_in") if narrow and is_first else None
        self._project_out = parts.linear("head.project_out") if narrow and is_last else None

    def embed(self, ids: Sequence[int], spans: Sequence[Span]) -> Floats:
        """The tokens of spans, [tokens], to [tokens, d_model]."""
        self._clock.switch("other")
        if self._embedding is None:
            assert self._link is not None
            return self._link.receive(len(ids))
        if isinstance(self._embedding, FlashTable):
            self._clock.switch("io_exposed")
        x = self._embedding(ids)
        self._clock.switch("other")
        if self.spec.embed_scale != 1.0:
            x = x * self.spec.embed_scale
        if self._project_in is not None:
            x = self._project_in(x)
        if self._positions is None:
            return x
        rows = [at + self.spec.position_offset for span in spans for at in span.positions]
        x += self._positions(rows)
        return x

    @property
    def may_leave_out(self) -> bool:
        """Whether nobody asks for all tokens behind the last layer: no observer, no next stage."""
        return self.observer is None and self._link is None

    def rotations(self, spans: Sequence[Span]) -> Rotations | None:
        """The rotations of the positions of spans; None where there is none."""
        return None if self._rotary is None else self._rotary.at([one.positions for one in spans])

    def block(
        self,
        index: int,
        x: Floats,
        rotations: Rotations | None,
        spans: Sequence[Span],
        feed_forward: FeedForwardCall,
        before_attention: BeforeAttention | None = None,
        rows: Ids | None = None,
    ) -> Floats:
        """One layer, [tokens, d_model] to the same; appends keys and values of each span.

        `feed_forward` is not called where the layer has no bundles. Behind its last layer a stage
        passes the tokens on. With `rows`, what comes behind keys and values is computed of these
        tokens alone, by number, and they are what is returned.
        """
        x = self._block(index, x, rotations, spans, feed_forward, before_attention, rows)
        if self._link is not None and index == self.spec.n_layers - 1:
            self._clock.switch("other")
            self._link.send(x)
        return x

    def _block(
        self,
        index: int,
        x: Floats,
        rotations: Rotations | None,
        spans: Sequence[Span],
        feed_forward: FeedForwardCall,
        before_attention: BeforeAttention | None,
        rows: Ids | None,
    ) -> Floats:
        spec, layer = self.spec, self._layers[index]
        pre = spec.norm_placement == "pre"
        self._clock.switch("attention")
        normed = layer.attention_norm(x) if pre else x
        if before_attention is not None:
            before_attention(x, normed)
            self._clock.switch("attention")
        rotation = None if rotations is None else rotations.of(layer.attention.window)
        attended = self._scaled(
            layer.attention(normed, index, spans, rotation, self._window(index + 1), rows)
        )
        if rows is not None:
            x, normed = x[rows], normed[rows]
        if spec.block == "parallel":
            self._speculate(index + 1, x, rotations, spans)
            inputs = LayerInputs(self.parallel_input(index, x, normed), x, x)
            behind = x + attended
            return self._observed(index, x, behind, behind + self._scaled(feed_forward(inputs)))
        assert layer.ffn_norm is not None
        block, x = x, _added(attended, x)
        if not pre:
            x = layer.attention_norm(x)
        self._speculate(index + 1, x, rotations, spans)
        inputs = LayerInputs(layer.ffn_norm(x) if pre else x, x, block)
        behind, x = x, _added(self._scaled(self._through_ffn(index, inputs, feed_forward)), x)
        return self._observed(index, block, behind, x if pre else layer.ffn_norm(x))

    def _observed(self, index: int, came: Floats, behind: Floats, left: Floats) -> Floats:
        if self.observer is not None:
            self.observer(index, came, behind, left)
        return left

    def _window(self, index: int) -> int | None:
        """That of a layer's attention; None behind the last layer."""
        return self._layers[index].attention.window if index < len(self._layers) else None

    def _speculate(
        self, index: int, x: Floats, rotations: Rotations | None, spans: Sequence[Span]
    ) -> None:
        """Lets caches choose what a layer will see, by the stream behind the attention before it.

        The stream [tokens, d_model] changes little from layer to layer, and what is chosen can be
        fetched while the feed-forward layer between them is read. Source: InfiniGen (Lee et al.,
        OSDI 2024), section 4.3; there the input of the earlier attention is taken, which says less
        (docs/log/).
        """
        rows = [
            (row, span.cache)
            for row, span in enumerate(spans)
            if span.is_decoded and index in span.cache.speculated_layers
        ]
        if not rows:
            return
        self._clock.switch("predict")
        layer, pre = self._layers[index], self.spec.norm_placement == "pre"
        attention = layer.attention
        rotation = None if rotations is None else rotations.of(attention.window)
        queries = attention.queries(layer.attention_norm(x) if pre else x, rotation)
        for row, cache in rows:
            cache.speculate(index, queries[:, row], attention.scale)
        self._clock.switch("attention")

    def _through_ffn(
        self, index: int, inputs: LayerInputs, feed_forward: FeedForwardCall
    ) -> Floats:
        if index >= len(self._dense):
            return feed_forward(inputs)
        self._clock.switch("ffn")
        return self._dense[index](inputs.ffn)

    def parallel_input(self, index: int, x: Floats, normed: Floats) -> Floats:
        """The feed-forward input of a parallel block, which is known before attention."""
        norm = self._layers[index].ffn_norm
        return normed if norm is None else norm(x)

    def _scaled(self, branch: Floats) -> Floats:
        scale = self.spec.residual_scale
        if scale != 1.0:
            branch *= np.float32(scale)
        return branch

    @unwarned
    def logits(self, hidden: Floats) -> NDArray[np.float32]:
        """[tokens, d_model] after the last layer to [tokens, vocab].

        `ModelError` where a logit is not a number. A stage without the head has them from the last.
        """
        self._clock.switch("head")
        if self._head is None:
            assert self._link is not None
            return self._link.logits(len(hidden))
        if self._final_norm is not None:
            hidden = self._final_norm(hidden)
        if self._project_out is not None:
            hidden = self._project_out(hidden)
        if self.spec.logit_scale != 1.0:
            hidden = hidden * self.spec.logit_scale
        logits: NDArray[np.float32] = self._head(hidden)
        if not np.isfinite(logits).all():
            raise ModelError(
                "what the model computes overflows f32, so there is no answer; its weights are"
                " damaged, or its activation is not the one it was trained with"
            )
        if self._link is not None:
            self._link.reply(logits)
        self._clock.switch("other")
        return logits


def _added(branch: Floats, stream: Floats) -> Floats:
    """What a branch gives and the stream together, in the branch's memory."""
    branch += stream
    return branch
