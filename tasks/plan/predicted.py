"""The speed that layouts are ranked by."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from day0.architecture.attention.base import Held
from day0.architecture.cache import CacheDtypes
from day0.architecture.dtypes import BYTES
from day0.architecture.parallel import Sizes
from day0.architecture.roofline import bounds
from day0.architecture.structure import Structure
from day0.architecture.work import ACTIVATION, Step, WorkModel
from tasks.plan.memory import replica_sequences
from tasks.plan.search import Speed
from tasks.plan.served import Served
from tasks.plan.settings import PlanSettings


@dataclass(frozen=True, eq=False)
class Predictor:
    """Speeds of one model on one target."""

    work: WorkModel
    settings: PlanSettings
    _least: dict[tuple[int, ...], tuple[float, dict[str, float]]] = field(default_factory=dict)

    def least(self, sizes: Sizes, context: int) -> Speed:
        """The roofline of a decode step, and its messages at the full bandwidth of the links.

        A token passes the stages one after another, so that all layers count whatever the pipeline; beside them only
        what is sent between the stages.
        """
        target = self.settings.spec
        if target.bandwidth is None:
            return Speed()
        sequences = replica_sequences(self.settings.concurrency, sizes)
        key = (sizes.tp, sizes.ep, sizes.dcp, sequences, context)
        if key not in self._least:
            self._least[key] = self._one_stage(replace(sizes, pp=1, dp=sizes.group_replicas), sequences, context)
        seconds, terms = self._least[key]
        link = target.group_bandwidth(sizes.devices // sizes.dp)
        sent = (sizes.pp - 1) * sequences * self.work.structure.hidden * ACTIVATION
        sending = sent / link if link else 0.0
        whole = seconds + sending
        return Speed(whole, self.settings.concurrency / whole, {**terms, "send": sending})

    def _one_stage(self, sizes: Sizes, sequences: int, context: int) -> tuple[float, dict[str, float]]:
        target = self.settings.spec
        assert target.bandwidth is not None
        work = self.work.rank_work(Step(sequences, 1, context - 1), sizes)
        flops = {name: rate.value for name, rate in target.flops.items()}
        terms: dict[str, float] = defaultdict(float)
        for bound in bounds(work.classes, flops, target.bandwidth.value):
            terms[bound.name] += bound.seconds or 0.0
        for message in work.collectives:
            link = target.group_bandwidth(message.ranks)
            terms[message.kind] += message.count * message.bytes / link if link else 0.0
        return sum(terms.values()), dict(terms)


def predictor(structure: Structure, held: Served, settings: PlanSettings, dtypes: CacheDtypes) -> Predictor:
    """What predicts the speed of layouts."""
    names: tuple[Held, ...] = ("cache", "index", "state", "conv")
    return Predictor(
        WorkModel(structure, held.stored, {name: BYTES.get(dtypes.of(name), 1) for name in names}), settings
    )
