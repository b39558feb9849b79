"""A source of either kind: a directory of transformers, or a model in GGUF under the same names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flashllm.errors import NotACheckpoint
from flashllm.spec import MAX_EXPERTS

from ..source.checkpoint import Checkpoint, gguf_of, open_checkpoint
from ..source.gguf_files import GgufModel, int_or, open_gguf
from ..source.gguf_header import GgufTensor
from ..source.gguf_shard import GgufShard, TensorView
from .config import Config, read_config
from .gguf_architectures import GgufArchitecture
from .gguf_config import architecture_of, config_of

VIEWS_MAX = 1 << 20
"""Tensors, each expert's counted; the largest published model has about 70,000."""
READ_FOR_THE_CONFIG = ("rope_freqs.weight",)
"""Tensors that are part of the description."""
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")
_NAME = re.compile(r"(?:blk\.(\d{1,6})\.)?([a-z0-9_]+)\.(weight|bias)")


def source_config(source: Path) -> Config:
    """The configuration of a source; errors as those of `read_config` and `config_of`."""
    files = gguf_of(source)
    return read_config(source) if files is None else config_of(open_gguf(files))


@contextmanager
def open_source(source: Path, allow_pickle: bool = False) -> Iterator[Checkpoint]:
    """The weights of a source; errors as those of `open_checkpoint` and `open_gguf`."""
    files = gguf_of(source)
    if files is None:
        with open_checkpoint(source, allow_pickle) as checkpoint:
            yield checkpoint
        return
    model = open_gguf(files)
    with ExitStack() as stack:
        names: dict[str, str] = {}
        shards: dict[str, GgufShard] = {}
        for file, views in _views(model, names).items():
            shards[file] = GgufShard(files.directory, file, views)
            stack.callback(shards[file].close)
        yield Checkpoint(files.directory, shards, None, names=names, metadata=model.metadata)


def _views(model: GgufModel, names: dict[str, str]) -> dict[str, list[TensorView]]:
    """File -> views of its tensors; `names` gets what each is called in a checkpoint."""
    architecture, config = architecture_of(model), config_of(model)
    heads = _heads(architecture, config.values)
    layers = config.values.get("num_hidden_layers") if architecture.following else None
    found: dict[str, list[TensorView]] = {}
    for file, header in zip(model.files.names, model.headers, strict=True):
        views = found.setdefault(file, [])
        for tensor in header.tensors:
            if tensor.name not in READ_FOR_THE_CONFIG and not _follows(tensor, layers):
                views += _views_of(model, tensor, architecture, heads, names)
        if len(names) > VIEWS_MAX:
            raise NotACheckpoint(f"{header.path}: has more than {VIEWS_MAX} tensors and experts")
    return found


def _follows(tensor: GgufTensor, layers: object) -> bool:
    """Whether a tensor is of a block behind the layers, which no answer needs."""
    block = _BLOCK.match(tensor.name)
    return block is not None and type(layers) is int and int(block[1]) >= layers


def _views_of(
    model: GgufModel,
    tensor: GgufTensor,
    architecture: GgufArchitecture,
    heads: Mapping[str, int],
    names: dict[str, str],
) -> list[TensorView]:
    """One tensor, or one for each expert; of a name that no table has, the tensor as it is."""
    match = _NAME.fullmatch(tensor.name)
    module = "" if match is None else f"{'blk.{i}.' if match[1] else ''}{match[2]}"
    theirs = architecture.modules.get(module)
    if match is None or theirs is None:
        names[tensor.name] = tensor.name
        return [TensorView(tensor, tensor.name)]
    theirs = theirs.replace("{i}", match[1] or "")
    if module not in architecture.nameless:
        theirs = f"{theirs}.{match[3]}"
    if "{e}" not in theirs:
        names[tensor.name] = theirs
        rows = heads.get(module, 0)
        # Rows that are no pairs in each head have a wrong shape, which is said later.
        return [TensorView(tensor, tensor.name, heads=rows if _is_paired(tensor, rows) else 0)]
    dimensions = 2 if match[3] == "bias" else 3
    if len(tensor.shape) != dimensions or tensor.shape[0] > MAX_EXPERTS:
        raise NotACheckpoint(
            f"{model.path}: tensor {tensor.name!r} has the shape {list(tensor.shape)}; expected up"
            f" to {MAX_EXPERTS} {'vectors' if dimensions == 2 else 'matrices'}"
        )
    views = [
        TensorView(tensor, f"{tensor.name}[{expert}]", part=expert)
        for expert in range(tensor.shape[0])
    ]
    names |= {view.name: theirs.replace("{e}", str(view.part)) for view in views}
    return views


def _heads(architecture: GgufArchitecture, config: Mapping[str, object]) -> dict[str, int]:
    """Heads of the modules whose rows lie in pairs: queries have their own number, keys theirs."""
    queries = int_or(config.get("num_attention_heads"), 0)  # type: ignore[arg-type]
    keys = int_or(config.get("num_key_value_heads"), queries)  # type: ignore[arg-type]
    return dict(zip(architecture.paired, (queries, keys), strict=False))


def _is_paired(tensor: GgufTensor, heads: int) -> bool:
    return heads > 0 and tensor.shape[0] % (2 * heads) == 0
