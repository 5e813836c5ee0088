"""How long a decode step and a prefill should take under a layout.

A step of one rank is the sum of its classes of operators, and of its messages. A class takes the longer of computing
and of reading its weights or its cache, at what the target reaches of its peaks; moving its activations; and the least
time of each of its kernels. Fitted to and compared with AIConfigurator's measured tables by benchmarks/planner.py: it
ranks layouts, and is no promise of speed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from day0.architecture.attention.latent import SparseLatentAttention
from day0.architecture.decoder_rules import BoundRouting
from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.roofline import arithmetic_dtype
from day0.architecture.structure import LayerAttention
from day0.architecture.work import ClassWork, RankWork, Step, WorkModel
from day0.target import Target
from day0.target_figures import FORMATS
from tasks.plan import collectives
from tasks.plan.collectives import Dispatch
from tasks.plan.figures import Figures, figures_of

#: Kernels of one layer's attention beside its projections, with what is fused counted once: rotation, writing the
#: cache, the core, putting its parts together; for a latent its norm, its split and the two absorbed products; for an
#: indexer its rotations, its quantisation, its own cache, scores, choice and the translation into cache places.
LAUNCHES = {
    "full": 4, "sliding": 4, "chunked": 4, "cross": 2, "latent": 9, "sparse_latent": 10, "compressed": 24,
    "block_sparse": 14, "delta_net": 3, "kimi_delta": 3, "mamba2": 3, "lightning": 3,
}  # fmt: skip
INDEXER_LAUNCHES = 14

#: Kernels of routed experts for each of their two products: the choice, putting tokens in order, the grouped product,
#: the activation, adding up.
EXPERT_LAUNCHES = 2.5

#: Standard deviation of the tokens of one expert, in parts of their mean: routers are uneven, and all ranks wait for
#: the one that has most. AIConfigurator draws the load from a power law, under which it grows with the tokens.
EXPERT_SPREAD = 2.0

#: The sparse prefill of FlashMLA pads a rank's heads to this (vLLM 0.32.0, v1/attention/backends/mla/
#: flashmla_sparse.py, prefill_padding on Hopper), so that tensor parallelism does not divide it further.
SPARSE_HEADS = 64


@dataclass(frozen=True)
class Prediction:
    """Seconds, and the terms that they are the sum of: classes of operators, kinds of messages, and `bubble`."""

    seconds: float
    terms: Mapping[str, float]


@dataclass(frozen=True)
class Serving:
    """A layout under steady load: as many requests at a time as are asked for, each followed by the next."""

    prefill: Prediction
    """From when a prompt's computation begins to its first token."""
    decode: Prediction
    """Between two tokens of a request, while no prompt is computed."""
    whole_seconds: float
    """From the first token of an answer to its last, with the prompts that are computed meanwhile."""
    tokens_per_second: float
    """Output of all replicas together."""

    def per_device(self, sizes: Sizes) -> float:
        """Output tokens per second of one device."""
        return self.tokens_per_second / sizes.devices


@dataclass(frozen=True)
class StageWork:
    """The work of the pipeline stages that are alike: `count` of them."""

    count: int
    rank: RankWork
    launches: float
    """Kernels of the attention's cores."""
    padding: float
    """FLOPs of the attention's cores that are spent on heads that are none."""


@dataclass(frozen=True, eq=False)
class SpeedModel:
    """Predicts the times of one model on one target."""

    work: WorkModel
    target: Target
    dispatch: Dispatch = "gather"
    """How the engine sends tokens to experts."""
    _stages: dict[tuple[Sizes, Step], tuple[StageWork, ...]] = field(default_factory=dict)

    @cached_property
    def figures(self) -> Figures:
        return figures_of(self.target)

    @cached_property
    def routing(self) -> BoundRouting | None:
        """How tokens choose experts; None of a model without."""
        return next((routing for routing in self.work.structure.routing if not routing.mtp), None)

    def decode_seconds(self, sizes: Sizes, context: int, sequences: int) -> Prediction | None:
        """The time of one token of each of `sequences` sequences of one attention replica, with `context` cached.

        Over a pipeline the sequences are as many micro-batches as stages. A token passes all stages; where the slowest
        takes longer for all micro-batches than that, the others wait for it. None where the target's memory bandwidth
        is not known.
        """
        micro = min(sizes.pp, sequences)
        step = Step(-(-sequences // micro), 1, context)
        return self._pipelined(step, sizes, micro)

    def prefill_seconds(
        self, sizes: Sizes, tokens: int, sequences: int = 1, chunk: int | None = None
    ) -> Prediction | None:
        """The time until `sequences` prompts of `tokens` tokens each are computed, together in one attention replica.

        In passes of `chunk` tokens of each (None: in one), which follow each other through the pipeline. What a pass
        takes grows evenly with what is cached before it, so only the first and the last are computed. None as above.
        """
        passes = math.ceil(tokens / chunk) if chunk else 1
        each = math.ceil(tokens / passes)
        first = self._pipelined(Step(sequences, each, 0), sizes, 1)
        if passes == 1 or first is None:
            return first
        last_step = Step(sequences, each, (passes - 1) * each)
        last = self._pipelined(last_step, sizes, 1)
        assert last is not None
        slowest = [self._slowest(step, sizes) for step in (Step(sequences, each, 0), last_step)]
        seconds = (first.seconds + last.seconds) / 2 + (passes - 1) * sum(slowest) / 2
        terms = {name: passes * (first.terms[name] + last.terms.get(name, 0.0)) / 2 for name in first.terms}
        overlapped = sum(terms.values()) - seconds
        return Prediction(seconds, {**terms, "overlap": -overlapped} if overlapped > 0 else terms)

    def serving(self, sizes: Sizes, prompt: int, output: int, sequences: int) -> Serving | None:
        """`sequences` requests at a time on each attention replica, of `prompt` tokens answered with `output`.

        While a request gets its answer, each of the others has to have its prompt computed once; the attention replicas
        that share experts compute theirs together. None where the target's memory bandwidth is not known.
        """
        decode = self.decode_seconds(sizes, prompt + output // 2, sequences)
        prefill = self.prefill_seconds(sizes, prompt)
        if decode is None or prefill is None:
            return None
        whole = output * decode.seconds + sequences * prefill.seconds / sizes.pp
        return Serving(prefill, decode, whole, sizes.dp * sequences * output / whole)

    def _pipelined(self, step: Step, sizes: Sizes, micro: int) -> Prediction | None:
        """One pass of a micro-batch through all stages, while the others pass them too."""
        if self.target.bandwidth is None:
            return None
        terms: dict[str, float] = defaultdict(float)
        for stage in self.stages(step, sizes):
            for name, seconds in self.stage_terms(stage, sizes, self.figures).items():
                terms[name] += stage.count * seconds
        whole = sum(terms.values())
        waiting = micro * self._slowest(step, sizes) - whole if micro > 1 else 0.0
        if waiting > 0:
            terms["bubble"] = waiting
        return Prediction(whole + max(0.0, waiting), dict(terms))

    def _slowest(self, step: Step, sizes: Sizes) -> float:
        return max(sum(self.stage_terms(s, sizes, self.figures).values()) for s in self.stages(step, sizes))

    def stages(self, step: Step, sizes: Sizes) -> tuple[StageWork, ...]:
        """The work of each kind of pipeline stage."""
        key = (sizes, step)
        if key not in self._stages:
            found = []
            for stage, count in self._kinds(sizes.pp):
                span = pipeline_stages(self.work.structure.layers, sizes.pp)[stage]
                layers = [(e, sum(span[0] <= n < span[1] for n in e.layers)) for e in self._attention]
                launches = sum(number * _launches(entry) for entry, number in layers)
                padding = sum(number * _padding(entry, step, sizes) for entry, number in layers)
                found.append(StageWork(count, self.work.rank_work(step, sizes, stage), launches, padding))
            self._stages[key] = tuple(found)
        return self._stages[key]

    def stage_terms(self, stage: StageWork, sizes: Sizes, figures: Figures) -> dict[str, float]:
        """Seconds by class of operators and kind of messages, of one stage."""
        terms: dict[str, float] = defaultdict(float)
        for part in stage.rank.classes:
            terms[part.name] += self._class_seconds(part, stage, sizes, figures)
        copies = min(self.routing.per_token, sizes.ep) if self.routing else 1
        for message in stage.rank.collectives:
            devices = sizes.stage_ranks * sizes.pp if message.kind == "send" else message.ranks
            terms[message.kind] += collectives.seconds(message, self.target, figures, devices, copies, self.dispatch)
        return dict(terms)

    def _class_seconds(self, part: ClassWork, stage: StageWork, sizes: Sizes, figures: Figures) -> float:
        """One class on one rank."""
        assert self.target.bandwidth is not None
        bandwidth = self.target.bandwidth.value
        native = part.dtype in FORMATS and self.target.computes(part.dtype) is True
        rate = self._rate(part.dtype)
        reading = part.weight_bytes + part.cache_bytes
        if part.name == "attention":
            computing = _over(part.flops + stage.padding, rate * figures.attention_compute)
            moving = reading / (bandwidth * figures.attention)
            return max(computing, moving) + stage.launches * figures.kernel_seconds
        if part.name == "experts":
            reached = figures.quantised_experts if native else figures.experts
            widened = part.dtype in FORMATS and not native
            computing = _over(part.flops * self._unevenness(sizes), rate * reached)
            moving = reading / (bandwidth * (figures.widened if widened else figures.memory))
            return computing + moving + part.kernels * EXPERT_LAUNCHES * figures.kernel_seconds
        each = figures.quantised_seconds if native else figures.kernel_seconds
        longer = max(_over(part.flops, rate * figures.compute), reading / (bandwidth * figures.memory))
        return longer + part.activation_bytes / (bandwidth * figures.memory) + part.kernels * each

    def _rate(self, dtype: str) -> float:
        """Peak FLOPs per second with weights of a format; 0 where no source gives it."""
        known = {name: rate.value for name, rate in self.target.flops.items()}
        return known.get(arithmetic_dtype(dtype, known), 0.0)

    def _unevenness(self, sizes: Sizes) -> float:
        """What the rank with most has to do, in parts of the mean: the expected maximum of `ep` sums over its experts.

        About √(2 ln n) · 0.7 standard deviations for n from 4 to 64 (of normally distributed ones); at most everything.
        """
        if self.routing is None or sizes.ep == 1:
            return 1.0
        local = self.routing.experts / sizes.ep
        deviations = 0.7 * math.sqrt(2 * math.log(sizes.ep))
        return min(float(sizes.ep), 1 + deviations * EXPERT_SPREAD / math.sqrt(local))

    def _kinds(self, pp: int) -> list[tuple[int, int]]:
        """Of pipeline stages that have as many layers of every sort, one and how many they are."""
        spans = pipeline_stages(self.work.structure.layers, pp)
        sorts = [set(group.layers) for group in self.work.structure.groups if group.layers is not None]
        sorts += [set(entry.layers) for entry in self._attention]
        distinct = {frozenset(layers) for layers in sorts}
        first: dict[tuple[object, ...], int] = {}
        counts: Counter[tuple[object, ...]] = Counter()
        for stage, (begin, end) in enumerate(spans):
            held = tuple(sum(begin <= layer < end for layer in layers) for layers in distinct)
            key = (stage == 0, stage == pp - 1, held)
            first.setdefault(key, stage)
            counts[key] += 1
        return [(stage, counts[key]) for key, stage in first.items()]

    @cached_property
    def _attention(self) -> tuple[LayerAttention, ...]:
        return tuple(entry for entry in self.work.structure.attention if not entry.mtp)


def _launches(entry: LayerAttention) -> int:
    attention = entry.attention
    indexer = isinstance(attention, SparseLatentAttention) and attention.index_heads
    return LAUNCHES[attention.kind] + (INDEXER_LAUNCHES if indexer else 0)


def _padding(entry: LayerAttention, step: Step, sizes: Sizes) -> float:
    attention = entry.attention
    if step.new == 1 or not isinstance(attention, SparseLatentAttention):
        return 0.0
    divided = max(1, min(sizes.tp, attention.heads // SPARSE_HEADS))
    computed, useful = (attention.rank(tp).flops(step.new, step.past) for tp in (divided, sizes.tp))
    return float(step.sequences * (computed - useful))


def _over(amount: float, rate: float) -> float:
    return amount / rate if rate else 0.0
