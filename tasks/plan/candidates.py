"""The sizes that a search looks at: which there are depends on the model and the request, not on the devices given.

So more devices add candidates and take none away: what is feasible stays so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from day0.architecture.parallel import Sizes
from tasks.plan.constraints import Constraints, Obstacle
from tasks.plan.settings import PlanSettings

#: Most replicas-counts that are tried beside powers of two and those that divide the experts.
MOST_COUNTS = 16


@dataclass(frozen=True, eq=False)
class Candidates:
    """Sizes within those that are given."""

    constraints: Constraints
    settings: PlanSettings
    _shared: dict[int, list[int]] = field(default_factory=dict)
    _obstacles: dict[tuple[int, ...], list[Obstacle]] = field(default_factory=dict)

    @cached_property
    def largest_tp(self) -> int:
        """Tensor parallelism does not span nodes, unless it is asked for."""
        spec = self.settings.spec
        return self.constraints.structure.vocab if spec.memory.shared else spec.devices_per_node.value

    def tensor_parallel(self, devices: int) -> list[int]:
        """Tensor parallel sizes over at most so many devices, whether they divide the model or not."""
        if self.settings.tp:
            return [self.settings.tp]
        return list(range(1, min(devices, self.largest_tp) + 1))

    def shapes(self, tp: int, devices: int) -> Iterator[Sizes]:
        """Everything but the pipeline beside a tensor parallel size: `pp` is the given one, or 1."""
        pp = self.settings.pp or 1
        within = devices if self._divides_nodes(tp) else min(devices, self.settings.spec.devices_per_node.value)
        for number, dp in enumerate(self.replicas(tp)):
            if number and tp * pp * dp > within:
                return
            for ep in self._expert_parallel(tp, dp):
                for dcp in self._context_parallel(tp):
                    yield Sizes(tp, pp, ep, dp, dcp)

    def pipelines(self, sizes: Sizes, devices: int) -> list[int]:
        """Pipeline sizes that so many devices have room for; a given one always.

        Tensor parallel groups that do not divide a node stay within one: on several, one of them would span two.
        """
        if self.settings.pp:
            return [self.settings.pp]
        if not self._divides_nodes(sizes.tp):
            devices = min(devices, self.settings.spec.devices_per_node.value)
        layers = self.constraints.structure.layers
        return list(range(1, min(layers, devices // (sizes.tp * sizes.dp)) + 1))

    def _divides_nodes(self, tp: int) -> bool:
        spec = self.settings.spec
        return bool(self.settings.tp) or spec.memory.shared or spec.devices_per_node.value % tp == 0

    def possible(self, sizes: Sizes) -> list[Obstacle]:
        """What forbids the sizes, whatever the memory."""
        found = self.constraints.obstacles(sizes)
        if sizes.tp > self.largest_tp and not self.settings.tp:
            found.append(self.spans_nodes(sizes.tp))
        return found

    def spans_nodes(self, tp: int) -> Obstacle:
        node = self.settings.spec.devices_per_node.value
        reason = f"tp {tp} would span nodes of {node} devices; it is not chosen unless --tp asks for it"
        return Obstacle("nodes", reason, "devices_per_node", node, tp)

    def replicas(self, tp: int) -> list[int]:
        """Data parallel sizes, in order. No replica without a sequence to serve, but what a given ep needs.

        Powers of two; the fewest for each number of sequences that a replica then has; those with which the experts
        divide.
        """
        if self.settings.dp:
            return [self.settings.dp]
        least = max(1, (self.settings.ep or 1) // tp)
        most = self.settings.concurrency
        counts = {1 << power for power in range(most.bit_length())}
        served = sorted({-(-most // n) for n in range(1, math.isqrt(most) + 1)} | set(range(1, math.isqrt(most) + 1)))
        step = -(-len(served) // MOST_COUNTS)
        counts |= {-(-most // sequences) for sequences in served[::step]}
        experts = self.constraints.weights.experts
        counts |= {n for n in range(1, min(most, experts) + 1) if experts % n == 0}
        return sorted({count for count in counts if least <= count <= most} | {least})

    def _expert_parallel(self, tp: int, dp: int) -> list[int]:
        """Each group of tp / ep ranks sharing its experts, or tp · k ranks that have whole ones."""
        if self.settings.ep:
            return [self.settings.ep]
        if not self.constraints.weights.experts:
            return [1]
        within = [n for n in range(1, tp + 1) if tp % n == 0 and (n in (1, tp) or self._shares_within)]
        experts = self.constraints.weights.experts
        among = (k for k in range(2, dp + 1) if dp % k == 0 and (k == dp or k & (k - 1) == 0))
        return within + [tp * k for k in among if experts % (tp * k) == 0]

    @property
    def _shares_within(self) -> bool:
        """Whether the target has an engine that shares experts over a part of the tensor parallel ranks; vLLM's expert
        parallel size is always all of them, or 1."""
        return any(name.startswith("sglang") for name in self.settings.spec.engines)

    def _context_parallel(self, tp: int) -> list[int]:
        """None, or as many ranks as may, where the engine shares out tokens in such models."""
        if self.settings.dcp:
            return [self.settings.dcp]
        if tp not in self._shared:
            self._shared[tp] = self._context_sizes(tp)
        return self._shared[tp]

    def _context_sizes(self, tp: int) -> list[int]:
        divisors = (n for n in range(tp, 1, -1) if tp % n == 0)
        most = next((n for n in divisors if not self.constraints.context_parallel(Sizes(tp, 1, dcp=n))), 1)
        return [1, most] if most > 1 else [1]
