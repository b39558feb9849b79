"""Decoders of stages: the first one announces each call, and the others compute it with it.

Every stage does the same: the same schedules over its own layers, contexts of the same tokens. What
differs is in the link: where hidden states come from, and where logits go.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.engine.pipeline.link import GlooLink
from flashllm.errors import EngineLost, FlashllmError
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.kv_cache.context import Context
from flashllm.kv_cache.protocol import KeysValues
from flashllm.model.active_set_selectors import Selector
from flashllm.model.decoder import Decoder
from flashllm.model.ffn_prefill import Tap
from flashllm.model.schedule import Progress
from flashllm.planning.plan import Plan


class LeadingDecoder(Decoder):
    """The first stage's, with which an engine computes as with any other."""

    def __init__(
        self,
        store: Store,
        resident: Mapping[str, RawTensor],
        selector: Selector | None,
        plan: Plan,
        kernels: core.Kernels,
        kv_directories: Sequence[Path],
        link: GlooLink,
    ) -> None:
        self._gloo = link
        self._is_calling = True  # the first context is there at all stages
        self._numbers: weakref.WeakKeyDictionary[Context, int] = weakref.WeakKeyDictionary()
        self._made = 0
        super().__init__(store, resident, selector, plan, kernels, kv_directories, link=link)
        self._is_calling = False

    def new_context(self, keys_values: KeysValues | None = None) -> Context:
        """A new, empty context, at all stages."""
        assert keys_values is None, "each stage has keys and values of its own"
        with self._call("new_context", []):
            context = super().new_context()
            self._numbers[context] = self._made
            self._made += 1
        return context

    def truncate(self, length: int, context: Context | None = None) -> None:
        """Forget all tokens of a context but the first `length`, at all stages."""
        with self._call("truncate", [context], length):
            super().truncate(length, context)

    def share_prefix(
        self, context: Context, ids: Sequence[int], *, reuse_answers: bool = True
    ) -> None:
        """Let a context begin with what another one has of a prompt, at all stages."""
        with self._call("share_prefix", [context], list(ids), reuse_answers):
            super().share_prefix(context, ids, reuse_answers=reuse_answers)

    def prefill(
        self,
        ids: Sequence[int],
        tap: Tap | None = None,
        progress: Progress | None = None,
        cached: int = 0,
        context: Context | None = None,
    ) -> NDArray[np.float32]:
        """Compute a prompt after the first `cached` tokens of a context, at all stages."""
        assert tap is None, "a stage has not all layers"
        with self._call("prefill", [context], list(ids), cached):
            return super().prefill(ids, None, progress, cached, context)

    def prefill_each(
        self, prompts: Sequence[Sequence[int]], contexts: Sequence[Context], cached: Sequence[int]
    ) -> Iterator[NDArray[np.float32]]:
        """Compute several prompts at all stages."""
        with self._call("prefill_each", contexts, [list(ids) for ids in prompts], list(cached)):
            yield from super().prefill_each(prompts, contexts, cached)

    def decode(self, token: int, context: Context | None = None) -> NDArray[np.float32]:
        """Append one token to a context, at all stages."""
        with self._call("decode", [context], token):
            return super().decode(token, context)

    def decode_each(
        self, tokens: Sequence[int], contexts: Sequence[Context]
    ) -> Iterator[NDArray[np.float32]]:
        """Append a token to each of several contexts, at all stages."""
        with self._call("decode_each", contexts, list(tokens)):
            yield from super().decode_each(tokens, contexts)

    def close(self) -> None:
        """Ends the other stages, too."""
        with contextlib.suppress(EngineLost):
            self._gloo.announce({"name": "close", "contexts": [], "arguments": []})
            self._gloo.finish()
        super().close()

    @contextlib.contextmanager
    def _call(
        self, name: str, contexts: Sequence[Context | None], *arguments: Any
    ) -> Iterator[None]:
        """Announces a call, unless it is part of another one.

        Where it fails, the other stages end it too, and its contexts are emptied: what they hold
        may differ by then.
        """
        if self._is_calling:
            yield
            return
        own = [context or self.context for context in contexts]
        numbers = [self._numbers[context] for context in own]
        self._gloo.announce({"name": name, "contexts": numbers, "arguments": arguments})
        self._is_calling = True
        try:
            yield
        except EngineLost:
            raise
        except BaseException as error:
            self._is_calling = False
            self._gloo.fail(error if isinstance(error, FlashllmError) else FlashllmError("ended"))
            self.settle()
            for context in own:
                self.truncate(0, context)
            raise
        finally:
            self._is_calling = False


class FollowingDecoder:
    """Computes what is announced, until it is to close."""

    def __init__(self, decoder: Decoder, link: GlooLink) -> None:
        self._decoder, self._link = decoder, link
        self._contexts = [decoder.context]
        self._calls: dict[str, Callable[..., object]] = {
            "new_context": self._new_context,
            "truncate": lambda contexts, length: decoder.truncate(length, contexts[0]),
            "share_prefix": lambda contexts, ids, reuse: decoder.share_prefix(
                contexts[0], ids, reuse_answers=reuse
            ),
            "prefill": lambda contexts, ids, cached: decoder.prefill(
                ids, cached=cached, context=contexts[0]
            ),
            "prefill_each": lambda contexts, prompts, cached: list(
                decoder.prefill_each(prompts, contexts, cached)
            ),
            "decode": lambda contexts, token: decoder.decode(token, contexts[0]),
            "decode_each": lambda contexts, tokens: list(decoder.decode_each(tokens, contexts)),
        }

    def follow(self) -> None:
        """Computes calls, of which those that fail are ended; `EngineLost` if a stage is."""
        while True:
            values = self._link.announced()
            if values["name"] == "close":
                return
            contexts = [self._contexts[number] for number in values["contexts"]]
            try:
                self._calls[values["name"]](contexts, *values["arguments"])
            except EngineLost:
                raise
            except FlashllmError as error:
                self._link.fail(error)
                self._decoder.settle()

    def _new_context(self, _: Sequence[Context]) -> None:
        self._contexts.append(self._decoder.new_context())
