"""The least work of a forward pass: FLOPs of the matrix products, and bytes that must move.

Left out: norms, activations, softmax, sampling (under 1 % of the FLOPs), and activations that stay in caches. So the
roofline made from these is a bound that no engine beats, not a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from day0.architecture.structure import Structure


@dataclass(frozen=True)
class Work:
    """FLOPs, and bytes read from or written to the device's memory."""

    flops: int
    bytes: int

    def least_seconds(self, flops_per_second: float | None, bytes_per_second: float | None) -> float | None:
        """The roofline: the longer of computing and moving. None where neither rate is known."""
        times = [
            amount / rate for amount, rate in ((self.flops, flops_per_second), (self.bytes, bytes_per_second)) if rate
        ]
        return max(times, default=None)


def prefill(structure: Structure, tokens: int, weight_bytes: int, kv_bytes: int, sequences: int = 1) -> Work:
    """Work of `sequences` prompts of `tokens` tokens in one pass. The output head runs for the last token only.

    Args:
        weight_bytes: bytes of one weight.
        kv_bytes: bytes of one cache element.
    """
    matrices, head = _matrices(structure)
    layers, attention = structure.config.layers, structure.attention
    scores = layers * attention.scores_flops(tokens, 0)
    flops = sequences * (2 * matrices * tokens + 2 * head + scores)
    cache = layers * (attention.cache_fixed + attention.cache_per_token * tokens) * kv_bytes
    return Work(flops, _weights_read(structure, sequences * tokens, weight_bytes) + sequences * cache)


def decode(structure: Structure, context: int, weight_bytes: int, kv_bytes: int, sequences: int = 1) -> Work:
    """Work of one decode step: one new token for each sequence, which then has `context` tokens in its cache."""
    matrices, head = _matrices(structure)
    layers, attention = structure.config.layers, structure.attention
    flops = sequences * (2 * (matrices + head) + layers * attention.scores_flops(1, context - 1))
    cache = layers * (attention.cache_fixed + attention.cache_per_token * context) * kv_bytes
    return Work(flops, _weights_read(structure, sequences, weight_bytes) + sequences * cache)


def _matrices(structure: Structure) -> tuple[int, int]:
    """Elements of the layers' matrices, and of the output head (the embedding where they are tied)."""
    layers = sum(part.numel for part in structure.parts if part.is_matrix and part.kind != "head")
    return layers, structure.config.vocab_size * structure.config.hidden_size


def _weights_read(structure: Structure, tokens: int, weight_bytes: int) -> int:
    """Every weight once, but of an untied embedding only the rows that the tokens look up."""
    config = structure.config
    read = structure.total
    if not config.tied_embeddings:
        read -= max(0, config.vocab_size - tokens) * config.hidden_size
    return read * weight_bytes
