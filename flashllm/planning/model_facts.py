"""Facts of a converted model before it is opened: selector, sizes, recording.

Only headers, the manifest and the recording are read.
"""

from __future__ import annotations

from pathlib import Path

from flashllm.errors import UsageError
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.manifest import Manifest
from flashllm.flash.model_files import ModelFiles
from flashllm.flash.tensor_table import own_embedding_bytes
from flashllm.options import SELECTORS, Select
from flashllm.planning.activation_stats import Activity, recorded
from flashllm.planning.sizes import Sizes
from flashllm.planning.tokenizer_memory import tokenizer_bytes
from flashllm.spec import ModelSpec
from flashllm.system.memory_limit import available_bytes, container_limit_bytes

AVAILABLE_SHARE = 0.75
"""Without a ceiling, the part of the memory available now that a model may take."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""A tokenizer has one of them."""
CONTAINER_SHARE = 0.95
"""Of a container's limit, at most. The rest is for the kernel and for other processes."""


def usual_ceiling(interpreter_bytes: int, application_bytes: int = 0) -> int:
    """The default ceiling: a share of what this machine, or this container, has left.

    A process takes `interpreter_bytes` before a model is loaded, an application beside it
    `application_bytes`. Libraries that other containers share may count for none of them, and so
    leave more than the limit; the ceiling is for all, and below it.
    """
    usual = interpreter_bytes + application_bytes + int(available_bytes() * AVAILABLE_SHARE)
    limit = container_limit_bytes()
    return usual if limit is None else min(usual, int(limit * CONTAINER_SHARE))


def choose_selector(files: ModelFiles, select: Select | None) -> Select:
    """The selector asked for, or the model's best one; `UsageError` if the model lacks it."""
    spec, where = files.spec, files.directory
    has_predictors = PREDICTORS_FILE in files.manifest.files
    has_gate = spec.gate == "resident" and spec.sparse
    if select is None:
        if spec.experts is not None:
            return "router"
        if has_predictors:
            return "predicted"
        return "gate" if has_gate else "all"
    check_selector(select, spec, has_predictors, where)
    return select


def check_selector(select: str, spec: ModelSpec, has_predictors: bool, where: Path) -> None:
    """`UsageError` for an unknown selector, or one that a model of this shape cannot have."""
    has_gate = spec.gate == "resident" and spec.sparse
    if select not in SELECTORS:
        raise UsageError(f"--select {select}: expected one of {', '.join(SELECTORS)}")
    if (select == "router") != (spec.experts is not None):
        if spec.experts is None:
            raise UsageError(f"--select router: {where} has no experts to choose among")
        raise UsageError(
            f"--select {select}: the router of {where} says which experts a token needs; use"
            " --select router, or leave it out"
        )
    if select not in ("all", "router") and not spec.sparse:
        raise UsageError(
            f"--select {select}: the neurons of {where} are never zero (its activation is"
            f" {spec.activation}), so all of them are needed; use --select all"
        )
    if select == "gate" and not has_gate:
        raise UsageError(f"--select gate: {where} has no resident gate; use --select all")
    if select == "predicted" and not has_predictors:
        advice = "use --select gate, which is exact" if has_gate else (
            "convert it with --predictors train, or use --select all"
        )  # fmt: skip
        raise UsageError(f"--select predicted: {where} has no predictors; {advice}")


def has_tokenizer(manifest: Manifest) -> bool:
    """Whether a model came with the files of a tokenizer."""
    return any(name in manifest.files for name in TOKENIZER_FILES)


def converted_sizes(files: ModelFiles, select: str, interpreter_bytes: int) -> Sizes:
    """The sizes that `make_plan` needs, for a converted model with a selector.

    `interpreter_bytes` is the resident memory of the process that will run it, before it is loaded.
    """
    index = files.resident_index()
    embeddings = sum(t.nbytes for name, t in index.items() if name.startswith("embed."))
    return Sizes(
        interpreter=interpreter_bytes,
        embeddings=embeddings,
        attention=files.resident_bytes() - embeddings,
        predictors=files.predictor_bytes(),
        tokenizer=tokenizer_bytes(files.spec) if has_tokenizer(files.manifest) else 0,
        own_embedding=0 if files.is_stage else own_embedding_bytes(files.spec),
        stride=files.header.stride,
        predictor_dtype=files.predictor_dtype() or "f16",
        activity=recorded_activity(files, select),
    )


def recorded_activity(files: ModelFiles, select: str) -> Activity | None:
    """The recorded activity of a converted model with a selector; None without a recording."""
    values = files.load_activity()
    if values is None or select == "all":
        return None
    found = recorded(values, select, files.model_spec, str(files.directory))
    return found.of_layers(files.bundled) if files.is_stage else found
