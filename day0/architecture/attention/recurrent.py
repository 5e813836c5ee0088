"""Attention with a state of fixed size instead of a cache: gated delta net, Kimi delta attention, Mamba 2, lightning.

Whatever the length, a layer keeps its state, and of its short causal convolution of width k the last k - 1 inputs, as
vLLM 0.32.0 does (layers/mamba/mamba_utils.py); transformers keeps k. Prefill is computed in chunks: within a chunk as
attention, between chunks by the state, so its FLOPs are linear in the length.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from day0.architecture.attention.base import Attention, CacheItem, Held, share

#: Tokens of a chunk of the delta rule: vLLM 0.32.0, third_party/flash_linear_attention `chunk_gated_delta_rule`.
DELTA_CHUNK = 64


class RecurrentAttention(Attention):
    """What layers with a state have in common."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """Elements of the state."""

    @property
    def conv_size(self) -> int:
        """Elements of the convolution's inputs that are kept."""
        return 0

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        state = CacheItem("state", "state", constant=self.state_size)
        return (state, CacheItem("convolution inputs", "conv", constant=self.conv_size)) if self.conv_size else (state,)

    def read(self, new: int, past: int) -> dict[Held, int]:
        return {item.held: item.constant for item in self.cache}


@dataclass(frozen=True)
class DeltaNet(RecurrentAttention):
    """Gated delta net: a state of key_dim × value_dim for each value head; q, k and v pass a convolution.

    Yang et al. 2024, Gated Delta Networks (arXiv:2412.06464). Key heads and value heads are divided over tensor
    parallel ranks (vLLM 0.32.0, layers/mamba/mamba_utils.py `gated_delta_net_state_shape`).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    """Width of the convolution."""

    kind: ClassVar[str] = "delta_net"
    name: ClassVar[str] = "gated_delta_net"

    @property
    def state_size(self) -> int:
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def conv_size(self) -> int:
        return (2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim) * (self.conv - 1)

    def flops(self, new: int, past: int) -> int:
        return self.value_heads * delta_rule(new, self.key_dim, self.value_dim)

    def rank(self, tp: int) -> Self:
        return dataclasses.replace(self, key_heads=share(self.key_heads, tp), value_heads=share(self.value_heads, tp))

    @property
    def sizes(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class KimiDelta(RecurrentAttention):
    """Kimi delta attention: the gated delta rule with a decay for each channel of the keys, and a state of dim × dim a
    head; q, k and v pass a convolution each.

    Kimi Team 2025, Kimi Linear (arXiv:2510.26692); vLLM 0.32.0, layers/mamba/mamba_utils.py `kda_state_shape`.
    """

    heads: int
    dim: int
    conv: int

    kind: ClassVar[str] = "kimi_delta"
    name: ClassVar[str] = "kimi_delta_attention"

    @property
    def state_size(self) -> int:
        return self.heads * self.dim * self.dim

    @property
    def conv_size(self) -> int:
        return 3 * self.heads * self.dim * (self.conv - 1)

    def flops(self, new: int, past: int) -> int:
        return self.heads * delta_rule(new, self.dim, self.dim)

    def rank(self, tp: int) -> Self:
        return dataclasses.replace(self, heads=share(self.heads, tp))

    @property
    def sizes(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Mamba2(RecurrentAttention):
    """Mamba 2: a state of head_dim × state a head; B and C are shared by the heads of a group; x, B and C pass a
    convolution.

    Dao and Gu 2024, Transformers are SSMs (arXiv:2405.21060). Heads and groups are divided over tensor parallel ranks,
    a group at least for each (vLLM 0.32.0, layers/mamba/mamba_utils.py `mamba2_state_shape`).
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int
    chunk: int = 256

    kind: ClassVar[str] = "mamba2"
    name: ClassVar[str] = "mamba2"

    @property
    def state_size(self) -> int:
        return self.heads * self.head_dim * self.state

    @property
    def conv_size(self) -> int:
        return (self.heads * self.head_dim + 2 * self.groups * self.state) * (self.conv - 1)

    def flops(self, new: int, past: int) -> int:
        """Each token's update of the state and its product with C; in a prefill also, within each chunk, C·Bᵀ of every
        group and its product with x."""
        recurrent = 4 * self.state_size * new
        if new == 1:
            return recurrent
        within = 2 * (self.groups * self.state + self.heads * self.head_dim)
        return recurrent + within * sum_of_squares(new, self.chunk)

    def rank(self, tp: int) -> Self:
        return dataclasses.replace(self, heads=share(self.heads, tp), groups=share(self.groups, tp))

    @property
    def sizes(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class LightningAttention(RecurrentAttention):
    """Lightning attention: linear attention with a decay a head, whose state is dim × dim.

    Qin et al. 2024, Lightning Attention-2 (arXiv:2401.04658); MiniMax-M1 (arXiv:2506.13585). No convolution. vLLM
    0.32.0, layers/mamba/mamba_utils.py `linear_attention_state_shape`.
    """

    heads: int
    dim: int
    block: int = 256

    kind: ClassVar[str] = "lightning"
    name: ClassVar[str] = "lightning_attention"

    @property
    def state_size(self) -> int:
        return self.heads * self.dim * self.dim

    def flops(self, new: int, past: int) -> int:
        """Each token's update of the state and its query's product with it; in a prefill also scores and weighted
        values within each block."""
        recurrent = 4 * self.state_size * new
        return recurrent if new == 1 else recurrent + 4 * self.heads * self.dim * sum_of_squares(new, self.block)

    def rank(self, tp: int) -> Self:
        return dataclasses.replace(self, heads=share(self.heads, tp))

    @property
    def sizes(self) -> dict[str, int]:
        return dataclasses.asdict(self)


def delta_rule(new: int, key_dim: int, value_dim: int) -> int:
    """FLOPs of the gated delta rule for one head.

    One token: k against the state, the update, q against the state. More are computed in chunks of c tokens in the WY
    form (arXiv:2406.06484, section 3): K·Kᵀ and Q·Kᵀ (c² · key_dim each), the inverse of a triangle (c³/3), its
    products with K and V, the scores' product with V, and three products with the state.
    """
    state = 6 * key_dim * value_dim
    if new == 1:
        return state
    whole, rest = divmod(new, DELTA_CHUNK)
    inverses = whole * DELTA_CHUNK**3 // 3 + rest**3 // 3
    return state * new + (6 * key_dim + 4 * value_dim) * sum_of_squares(new, DELTA_CHUNK) + inverses


def sum_of_squares(tokens: int, chunk: int) -> int:
    """Pairs of tokens within chunks, as kernels compute them: whole squares."""
    whole, rest = divmod(tokens, chunk)
    return whole * chunk * chunk + rest * rest
