"""Reads texts that the measuring commands record or repeat, as token ids."""

from __future__ import annotations

from pathlib import Path

from flashllm.cli.shared import open_model


def read_id_passages(
    path: Path, directory: Path, tokens: int, longest: int | None = None
) -> list[list[int]]:
    """At most `tokens` ids of a text (.ids, .txt or .jsonl), taken evenly from all of its lines.

    `directory` is that of the model whose tokenizer reads it; passages have at most `longest`
    tokens, and what the model allows. Errors: those of `eval --text`.
    """
    from flashllm.flash.model_files import ModelFiles
    from flashllm.predictors.calibration_texts import ContextLimits
    from flashllm.predictors.evaluation.texts import TextSettings, read_passages
    from flashllm.tokenizer.tokenizer import load_tokenizer

    spec = ModelFiles(directory).spec
    positions = min(spec.max_positions, longest or spec.max_positions)
    limits = ContextLimits(spec.vocab_size, positions, tokens, spec.bos_id)
    settings = TextSettings(tokens=tokens, all_tokens=True)
    tokenizer = load_tokenizer(directory)
    text = read_passages(path, tokenizer, limits, settings, open_model.terminal_progress())
    return [list(passage.ids) for passage in text.passages]


def read_ids(path: Path, directory: Path, tokens: int) -> list[int]:
    """The same ids, one passage after the other."""
    return [token for ids in read_id_passages(path, directory, tokens) for token in ids]
