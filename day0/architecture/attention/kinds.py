"""The class of each kind of attention that a family's file may name."""

from __future__ import annotations

from dataclasses import MISSING, fields

from day0.architecture.attention.base import Attention
from day0.architecture.attention.block_sparse import BlockSparseAttention
from day0.architecture.attention.compressed import CompressedAttention
from day0.architecture.attention.full import ChunkedAttention, CrossAttention, FullAttention, SlidingAttention
from day0.architecture.attention.latent import LatentAttention, SparseLatentAttention
from day0.architecture.attention.recurrent import DeltaNet, KimiDelta, LightningAttention, Mamba2
from day0.architecture.decoder_rules import BoundAttention
from day0.errors import InputError

CLASSES: tuple[type[Attention], ...] = (
    FullAttention, SlidingAttention, ChunkedAttention, LatentAttention, SparseLatentAttention, CompressedAttention,
    BlockSparseAttention, DeltaNet, KimiDelta, Mamba2, LightningAttention, CrossAttention,
)  # fmt: skip
KINDS = {chosen.kind: chosen for chosen in CLASSES}


def attention_of(bound: BoundAttention) -> Attention:
    """The attention of one layer, with the family's sizes.

    Raises:
        InputError: the family's entry lacks a size of the kind, or has one that the kind does not; names it.
    """
    chosen = KINDS[bound.kind]
    known = {field.name: field for field in fields(chosen)}  # type: ignore[arg-type]  # every kind is a dataclass
    for name in bound.sizes:
        if name not in known:
            raise InputError(f"attention {bound.kind!r} has no size {name!r}; it has {', '.join(known)}")
    for name, field in known.items():
        if field.default is MISSING and name not in bound.sizes:
            raise InputError(f"attention {bound.kind!r} needs the size {name!r}; the family's entry lacks it")
    return chosen(**bound.sizes)
