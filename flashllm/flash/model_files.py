"""What a converted model is, by its files: spec, header, sizes, recording. No weight is read.

Imports no numpy: who only lists models, or shows one that another process computes with, does
without its 16 MiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashllm.errors import LayoutError
from flashllm.flash.file_names import ACTIVITY_FILE, BUNDLES_FILE, PREDICTORS_FILE, RESIDENT_FILE
from flashllm.flash.layer_range import own_names
from flashllm.flash.layout import BundleHeader, read_header
from flashllm.flash.manifest import Manifest, layout_version, read_manifest
from flashllm.flash.opening_errors import opening_errors
from flashllm.flash.safetensors_file import TensorRecord, read_tensor_index
from flashllm.flash.tensor_spans import some_tensors_bytes
from flashllm.flash.tensor_table import encoding_of, predictor_columns
from flashllm.spec import ModelSpec
from flashllm.spec.layer_range import of_layers
from flashllm.untrusted.strict_json import parse_object

_ACTIVITY_BYTES_MAX = 64 << 20


class ModelFiles:
    """The files of a model directory, which belong together. Errors: those of opening."""

    def __init__(self, directory: Path, layers: range | None = None) -> None:
        """With `layers` they are those of a stage: spec and header are of these, counted from 0."""
        self.directory = directory
        with opening_errors(directory):
            self.manifest: Manifest = read_manifest(directory)
            self.file_header: BundleHeader = read_header(directory / BUNDLES_FILE)
            """That of the file, which has all layers."""
        self.model_spec: ModelSpec = self.manifest.spec
        """Of the whole model."""
        _check_header(self.file_header, self.model_spec, directory / BUNDLES_FILE)
        self.is_stage = layers is not None
        self._layers = range(self.model_spec.n_layers) if layers is None else layers
        self.spec: ModelSpec = self.model_spec
        self.header: BundleHeader = self.file_header
        if layers is not None:
            self.spec = of_layers(self.model_spec, layers)
            self.header = self.file_header.of_layers(self.bundled)

    @property
    def bundled(self) -> range:
        """Its layers that have bundles, counted from the model's first one that has."""
        dense = self.model_spec.dense_layers
        return range(max(self._layers.start - dense, 0), self._layers.stop - dense)

    def own(self, index: dict[str, TensorRecord]) -> dict[str, TensorRecord]:
        """What of a file's tensors is needed here, by the names that they have here."""
        if not self.is_stage:
            return index
        spec = self.model_spec
        names = own_names(index, self._layers, spec.n_layers, tied_head=spec.tied_head)
        return {own: index[name] for name, own in names.items()}

    def resident_index(self) -> dict[str, TensorRecord]:
        """Where the resident tensors lie, by the names that they have here."""
        return self.own(read_tensor_index(self.directory / RESIDENT_FILE))

    def resident_bytes(self) -> int:
        """Memory of the resident tensors."""
        if not self.is_stage:
            return self.file_bytes(RESIDENT_FILE)
        return some_tensors_bytes(self.resident_index())

    def predictor_bytes(self) -> int:
        """Memory of the predictors; 0 if there are none."""
        if not self.is_stage or PREDICTORS_FILE not in self.manifest.files:
            return self.file_bytes(PREDICTORS_FILE)
        return some_tensors_bytes(self.own(read_tensor_index(self.directory / PREDICTORS_FILE)))

    def predictor_dtype(self) -> str | None:
        """Encoding of the predictors' matrices, or None where the model has none."""
        if PREDICTORS_FILE not in self.manifest.files:
            return None
        index = read_tensor_index(self.directory / PREDICTORS_FILE)
        columns = predictor_columns(index, self.spec)
        return next((encoding_of(index[name], columns[name]) for name in columns), None)

    def load_activity(self) -> dict[str, Any] | None:
        """The recorded activity, or None."""
        if ACTIVITY_FILE not in self.manifest.files:
            return None
        path = self.directory / ACTIVITY_FILE
        with opening_errors(path), path.open("rb") as file:
            raw = file.read(_ACTIVITY_BYTES_MAX + 1)
        if len(raw) > _ACTIVITY_BYTES_MAX:
            raise LayoutError(f"{path}: larger than any recording. Convert the model again")
        return parse_object(raw, path, LayoutError)

    def file_bytes(self, name: str) -> int:
        """Size of one of the model's files, from the manifest; 0 if it does not exist."""
        record = self.manifest.files.get(name)
        return record.bytes if record else 0


def _check_header(header: BundleHeader, spec: ModelSpec, path: Path) -> None:
    pairs = {
        "layout": (header.major, layout_version(spec)),
        "dtype": (header.dtype, spec.dtype),
        "layers": (header.n_layers, spec.bundled_layers),
        "width": (header.d_model, spec.d_model),
        "bundles a layer": (header.bundles_per_layer, spec.bundles_per_layer),
        "rows a neuron": (header.rows_per_neuron, spec.rows_per_neuron),
        "neurons a bundle": (header.neurons_per_bundle, spec.neurons_per_bundle),
    }
    for what, (found, expected) in pairs.items():
        if found != expected:
            raise LayoutError(
                f"{path}: {what} is {found}, but the manifest says {expected}."
                " The files do not belong together; convert the model again"
            )
