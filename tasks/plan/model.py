"""The model that is planned for: its structure, and its weights as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from day0.architecture.quantization import Quantization, quantization_of
from day0.architecture.stored import Stored, stored_from_config, stored_from_headers
from day0.architecture.structure import Structure, structure_of
from day0.checkpoint import has_weights, open_checkpoint, read_config, read_quantisation


@dataclass(frozen=True)
class Model:
    """A model as a folder holds it, or as a config alone describes it."""

    structure: Structure
    stored: Stored
    quantization: Quantization | None
    """What the config says; the headers say what is."""

    @property
    def dtype_known(self) -> bool:
        """Whether something says what unquantised weights are."""
        return self.stored.source == "headers" or self.structure.config.dtype is not None


def read_model(path: Path) -> Model:
    """The model of a folder with weights or their headers, or of a config.json alone.

    Raises:
        InputError: the config or a header cannot be used; or no family describes such a model.
    """
    where = str(path)
    if has_weights(path):
        checkpoint = open_checkpoint(path)
        structure = structure_of(checkpoint.config, where, checkpoint.tensors)
        stored = stored_from_headers(structure.family, checkpoint.tensors)
    else:
        structure, stored = structure_of(read_config(path), where), None
    raw = structure.config.raw
    quantization = quantization_of(raw, read_quantisation(path), where)
    return Model(structure, stored or stored_from_config(structure, quantization), quantization)
