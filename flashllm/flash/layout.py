"""Flash layouts: the header of `ffn.bundles`, its one formula, and the resident tensors.

    offset(layer, bundle) = data_offset + (layer * bundles_per_layer + bundle) * stride

In layout 1 a bundle is a neuron, in layout 2 an expert. `docs/layout-v1.md` and `layout-v2.md`
describe the same; a test compares them and committed files. Everything about the bytes of a
converted model can be imported from here.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass
from pathlib import Path

from flashllm.core import crc32c
from flashllm.dtypes import expert_bytes, row_bytes
from flashllm.errors import LayoutError, ModelTruncated
from flashllm.flash.manifest import FileRecord, Manifest, read_manifest
from flashllm.flash.opening_errors import opening_errors
from flashllm.flash.safetensors_file import TensorRecord, read_tensor_index
from flashllm.flash.tensor_table import (
    check_resident,
    encoding_of,
    predictor_columns,
    resident_dtype,
    stored_as,
    tensor_table,
)
from flashllm.spec import MAX_LAYERS, MAX_WIDTH, ModelSpec

__all__ = [
    "BundleHeader",
    "FileRecord",
    "Manifest",
    "TensorRecord",
    "check_resident",
    "default_stride",
    "encoding_of",
    "predictor_columns",
    "read_header",
    "read_manifest",
    "read_tensor_index",
    "resident_dtype",
    "stored_as",
    "tensor_table",
]

MAGIC = b"flashllm"
MAJOR, MINOR = 1, 0
EXPERTS_MAJOR = 2
"""The layout of experts; its minor number is the same."""
HEADER_BYTES = 4096
DATA_OFFSET = 16384
FILE_ALIGNMENT = 16384
"""Data start and file end on a page of any system in use (16 KiB on Apple's)."""
DTYPE_CODES = {"f32": 1, "f16": 2, "bf16": 3, "int8": 4, "int4": 5, "mxfp4": 6}
FILE_ID_BYTES = 16

# Field and struct code, in the order of the file; zeros follow up to the CRC-32C at the end.
HEADER_FIELDS = {
    "magic": "8s", "major": "H", "minor": "H", "header_bytes": "I", "dtype": "I",
    "rows_per_neuron": "I", "neurons_per_bundle": "I", "n_layers": "I", "bundles_per_layer": "I",
    "d_model": "I", "stride": "Q", "bundle_bytes": "Q", "data_offset": "Q", "file_bytes": "Q",
    "file_id": "16s",
}  # fmt: skip
EXPERT_FIELDS = HEADER_FIELDS | {"down_columns": "I", "biases": "I"}
"""The fields of layout 2."""
FIELDS = struct.Struct("<" + "".join(HEADER_FIELDS.values()))
_EXPERT_FIELDS = struct.Struct("<" + "".join(EXPERT_FIELDS.values()))
CHECKSUM = struct.Struct("<I")
_CHECKSUM_AT = HEADER_BYTES - CHECKSUM.size
_DATA_OFFSET_MAX = 1 << 20
_FILE_BYTES_MAX = 1 << 62


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def default_stride(bundle_bytes: int) -> int:
    """Bytes from one bundle to the next: whole 4096s, or 512s where that wastes over an eighth."""
    stride = round_up(bundle_bytes, 4096)
    if (stride - bundle_bytes) * 8 > bundle_bytes:
        return round_up(bundle_bytes, 512)
    return stride


@dataclass(frozen=True, slots=True)
class BundleHeader:
    """The shape of `ffn.bundles`; `file_id` seeds the checksums of its bundles."""

    dtype: str
    rows_per_neuron: int
    neurons_per_bundle: int
    n_layers: int
    bundles_per_layer: int
    d_model: int
    stride: int
    data_offset: int
    file_id: bytes
    down_columns: int = 0
    """Of an expert, the weights in a row of down: its neurons. 0 where a bundle is a neuron."""
    biases: int = 0
    """Of an expert, how many vectors of biases in f32 lie behind its matrices: 0 or 3."""

    @classmethod
    def for_spec(cls, spec: ModelSpec, file_id: bytes) -> BundleHeader:
        """The header that the converter writes for a model."""
        return cls(
            dtype=spec.dtype,
            rows_per_neuron=spec.rows_per_neuron,
            neurons_per_bundle=spec.neurons_per_bundle,
            n_layers=spec.bundled_layers,
            bundles_per_layer=spec.bundles_per_layer,
            d_model=spec.d_model,
            stride=default_stride(spec.bundle_bytes),
            data_offset=DATA_OFFSET,
            file_id=file_id,
            down_columns=0 if spec.experts is None else spec.experts.d_ffn,
            biases=3 if spec.experts is not None and spec.experts.bias else 0,
        )

    @property
    def major(self) -> int:
        """Number of the layout."""
        return EXPERTS_MAJOR if self.down_columns else MAJOR

    @property
    def bundle_parts(self) -> tuple[int, ...]:
        """Bytes of what a bundle consists of, one after another.

        The rows of a neuron; of an expert gate, up and down, and then their biases if it has any.
        """
        row = row_bytes(self.dtype, self.d_model)
        if not self.down_columns:
            return (row,) * (self.neurons_per_bundle * self.rows_per_neuron)
        neurons, width = self.neurons_per_bundle, self.d_model
        matrices = (neurons * row,) * 2 + (width * row_bytes(self.dtype, self.down_columns),)
        if not self.biases:
            return matrices
        return matrices + tuple(row_bytes("f32", count) for count in (neurons, neurons, width))

    @property
    def bundle_bytes(self) -> int:
        """Useful bytes of a bundle; the rest of the stride is zeros."""
        if self.down_columns:
            bias = self.biases > 0
            return expert_bytes(self.dtype, self.d_model, self.down_columns, bias=bias)
        rows = self.neurons_per_bundle * self.rows_per_neuron
        return rows * row_bytes(self.dtype, self.d_model)

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        bundles = self.n_layers * self.bundles_per_layer
        return round_up(self.data_offset + bundles * self.stride, FILE_ALIGNMENT)

    def of_layers(self, layers: range) -> BundleHeader:
        """The shape of some neighbouring layers in the same file, counted from 0 again."""
        skipped = layers.start * self.bundles_per_layer * self.stride
        return dataclasses.replace(
            self, n_layers=len(layers), data_offset=self.data_offset + skipped
        )

    def offset(self, layer: int, bundle: int) -> int:
        """Position in the file of the first byte of a bundle."""
        if not (0 <= layer < self.n_layers and 0 <= bundle < self.bundles_per_layer):
            raise IndexError(
                f"layer {layer}, bundle {bundle}: the file has {self.n_layers} layers "
                f"of {self.bundles_per_layer} bundles"
            )
        return self.data_offset + (layer * self.bundles_per_layer + bundle) * self.stride

    def pack(self) -> bytes:
        """The 4096 bytes at the start of the file."""
        names, fields = _fields_of(self.major)
        own = {name: getattr(self, name) for name in names if hasattr(self, name)}
        values = own | {
            "magic": MAGIC,
            "minor": MINOR,
            "header_bytes": HEADER_BYTES,
            "dtype": DTYPE_CODES[self.dtype],
        }
        body = fields.pack(*(values[name] for name in names)).ljust(_CHECKSUM_AT, b"\0")
        return body + CHECKSUM.pack(crc32c(body))

    @classmethod
    def unpack(cls, raw: bytes, path: Path) -> BundleHeader:
        """The header in `raw`, every field bounded and checked against the others.

        `ModelTruncated` for fewer than 4096 bytes, else `LayoutError`, both naming `path`.
        """
        if len(raw) < HEADER_BYTES:
            raise ModelTruncated(f"{path}: ends inside its header, at byte {len(raw)}")
        values = dict(zip(HEADER_FIELDS, FIELDS.unpack_from(raw), strict=True))
        if values["magic"] != MAGIC:
            raise LayoutError(f"{path}: does not start with {MAGIC!r}; this is no file of bundles")
        version = values["major"], values["minor"]
        if version not in ((MAJOR, MINOR), (EXPERTS_MAJOR, MINOR)):
            raise LayoutError(
                f"{path}: layout {version[0]}.{version[1]}; this version reads {MAJOR}.{MINOR} and"
                f" {EXPERTS_MAJOR}.{MINOR}. Convert the checkpoint again, or update flashllm."
            )
        names, fields = _fields_of(version[0])
        values = dict(zip(names, fields.unpack_from(raw), strict=True))
        del values["magic"], values["major"], values["minor"]
        body = raw[:_CHECKSUM_AT]
        if CHECKSUM.unpack_from(raw, _CHECKSUM_AT)[0] != crc32c(body):
            raise LayoutError(f"{path}: the checksum of the header is wrong; convert again")
        if any(body[fields.size :]):
            raise LayoutError(f"{path}: the unused bytes of the header are not zero")
        dtypes = {code: name for name, code in DTYPE_CODES.items()}
        header_bytes, code = values.pop("header_bytes"), values.pop("dtype")
        if header_bytes != HEADER_BYTES or code not in dtypes:
            raise LayoutError(f"{path}: a header of {header_bytes} bytes, encoding {code}")
        derived = {name: values.pop(name) for name in ("bundle_bytes", "file_bytes")}
        header = cls(dtype=dtypes[code], **values)
        if header.major != version[0]:
            raise LayoutError(f"{path}: down_columns is 0 in a file of experts")
        header._check(path)
        for name, value in derived.items():
            if value != getattr(header, name):
                raise LayoutError(
                    f"{path}: {name} is {value}, but the other fields of the header give "
                    f"{getattr(header, name)}"
                )
        return header

    def _check(self, path: Path) -> None:
        """`LayoutError` for a field out of its bounds."""
        limits = {
            "rows_per_neuron": 3,
            "neurons_per_bundle": MAX_WIDTH,
            "n_layers": MAX_LAYERS,
            "bundles_per_layer": MAX_WIDTH,
            "d_model": MAX_WIDTH,
        }
        for name, limit in limits.items():
            if not 1 <= getattr(self, name) <= limit:
                raise LayoutError(f"{path}: {name} is {getattr(self, name)}; expected 1 to {limit}")
        is_expert = self.major == EXPERTS_MAJOR
        if is_expert and (self.rows_per_neuron, self.down_columns) != (3, self.neurons_per_bundle):
            raise LayoutError(
                f"{path}: {self.rows_per_neuron} rows a neuron and {self.down_columns} columns of"
                f" down, for experts of {self.neurons_per_bundle} neurons with a gate"
            )
        if self.biases not in (0, 3):
            raise LayoutError(f"{path}: {self.biases} biases of an expert; expected 0 or 3")
        if self.stride % 512 or not 0 <= self.stride - self.bundle_bytes < 4096:
            raise LayoutError(
                f"{path}: a stride of {self.stride} for bundles of {self.bundle_bytes} bytes"
            )
        if self.data_offset % 4096 or not HEADER_BYTES <= self.data_offset <= _DATA_OFFSET_MAX:
            raise LayoutError(f"{path}: data_offset is {self.data_offset}")
        if self.file_bytes > _FILE_BYTES_MAX:
            raise LayoutError(f"{path}: a size of {self.file_bytes} bytes is impossible")


def _fields_of(major: int) -> tuple[dict[str, str], struct.Struct]:
    """Names and codes of a layout's fields."""
    if major == EXPERTS_MAJOR:
        return EXPERT_FIELDS, _EXPERT_FIELDS
    return HEADER_FIELDS, FIELDS


def read_header(path: Path) -> BundleHeader:
    """The header of `ffn.bundles`, held against the size of the file."""
    with opening_errors(path), open(path, "rb") as file:
        header = BundleHeader.unpack(file.read(HEADER_BYTES), path)
        size = file.seek(0, 2)
    if size < header.file_bytes:
        raise ModelTruncated(f"{path}: {size} bytes, but its header says {header.file_bytes}")
    if size > header.file_bytes:
        raise LayoutError(f"{path}: {size} bytes, but its header says {header.file_bytes}")
    return header
