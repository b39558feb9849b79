"""Keeps a context's keys and values on flash, and brings them back where a prompt begins alike."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import numpy as np

import flashllm
from flashllm.errors import CannotCreate, FlashllmError
from flashllm.flash.manifest import manifest_hash
from flashllm.flash.store import Store
from flashllm.kv_cache.context import Context
from flashllm.kv_cache.kept_directory import KeptDirectory, clear
from flashllm.kv_cache.kept_file import KeptFile
from flashllm.kv_cache.layout import kv_row_bytes
from flashllm.model.decoder import Decoder
from flashllm.options import ModelOptions
from flashllm.planning.plan import Plan
from flashllm.system import paths

TOKENS_MIN = 64
"""Fewer tokens are read anew: opening files takes as long."""
_log = logging.getLogger("flashllm.engine")


class KeptContext:
    """One context and its file. Called between or within steps, one call at a time."""

    def __init__(self, context: Context, directory: KeptDirectory) -> None:
        self.problem = ""
        """Why nothing more is kept, or something kept was of no use; "" for neither."""
        self._context = context
        self._directory = directory
        self._file: KeptFile | None = None
        self._is_over = False

    def restore(self, ids: Sequence[int], answer: int, empty: Callable[[], None]) -> None:
        """Brings back what was kept of a prompt, where that is much more than the context has.

        The last `answer` ids are of an answer; `empty` forgets all tokens of the context.
        """
        context = self._context
        present = context.tokens.cached_prefix(ids, answer)
        if len(ids) - present < TOKENS_MIN:
            return
        file = self._directory.find(ids, answer, context.tokens)
        self._note(self._directory.problem)
        if file is None:
            return
        kept = min(file.tokens(context.tokens).cached_prefix(ids, answer), context.capacity)
        if kept - present < TOKENS_MIN or file.length > context.capacity:
            file.close()
            return
        self.finish()
        empty()
        try:
            file.restore(context)
        except OSError as error:
            file.problem = f"{file.path}: {error.strerror}"
        except FlashllmError as error:  # there is no room for them
            file.problem = str(error)
        self._note(file.problem)
        context.tokens.mark()
        self._file, self._is_over = file, False
        os.utime(file.path)

    def keep_some(self) -> bool:
        """Writes the next tokens that are not kept yet; whether there are more."""
        if self._is_over or self._context.length < TOKENS_MIN:
            return False
        try:
            return self._keep_some()
        except OSError as error:
            self._stop(f"keys and values are no longer kept: {error.strerror or error}")
            return False
        except FlashllmError as error:  # they are on flash already, and cannot be read back
            self._stop(f"keys and values are no longer kept: {error}")
            return False

    def finish(self) -> None:
        """Writes all that is not kept yet, and lets go of the file."""
        while self.keep_some():
            pass
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep_some(self) -> bool:
        context, file = self._context, self._file
        unchanged = context.tokens.unchanged
        if file is not None and unchanged < file.length:
            if 2 * unchanged >= file.length:
                file.truncate(unchanged)
            else:  # of another conversation, which may be gone on with
                file.close()
                file = None
        if file is None:
            file = self._file = self._directory.create()
        nbytes = file.next_bytes(context)
        if nbytes == 0:
            return False
        if not self._directory.make_room(nbytes, file.path):
            self._stop("keys and values are no longer kept: there is no room for more of them")
            return False
        file.append(context)
        context.tokens.mark()
        return file.length < context.length

    def _stop(self, problem: str) -> None:
        self._is_over = True
        self._note(problem)

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            self.problem = problem
            _log.warning("%s", problem)


def kept_context_for(
    options: ModelOptions, store: Store, plan: Plan, decoder: Decoder
) -> KeptContext | None:
    """What keeps a model's default context; None where that was not asked for.

    `CannotCreate` where all that was kept is to be removed and cannot be.
    """
    directory, bytes_max = paths.kept_kv_dir(), options.keep_kv
    if bytes_max is None:
        return None
    if bytes_max == 0:
        try:
            clear(directory)
        except OSError as error:
            raise CannotCreate(f"{directory}: cannot be emptied: {error.strerror}") from error
        return None
    if plan.kv_selection.lossy:
        return None
    context, spec = decoder.context, store.spec
    settings = {
        "model": manifest_hash(store.directory),
        "version": flashllm.__version__,
        "numpy": np.__version__,
        "instructions": decoder.isa,
        "kv_dtype": plan.kv_dtype,
        "selector": plan.select,
        "prompt_neurons": plan.prompt_neurons,
        "arithmetic": plan.arithmetic,
    }
    if plan.device is not None:  # what is computed there has other last bits
        placed = plan.device
        where = placed.name, placed.matrices, placed.kv_layers, placed.slots, placed.tile_bytes
        settings["device"] = repr(where)
    token_bytes = 2 * spec.n_kv_heads * kv_row_bytes(spec, plan.kv_dtype)
    kept = KeptDirectory(directory, bytes_max, settings, spec.n_layers, token_bytes)
    return KeptContext(context, kept)
