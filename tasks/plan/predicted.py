"""The speed that layouts are ranked by."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from day0.architecture.attention.base import Held
from day0.architecture.cache import CacheDtypes
from day0.architecture.dtypes import BYTES
from day0.architecture.parallel import Sizes
from day0.architecture.structure import Structure
from day0.architecture.work import WorkModel
from tasks.plan.memory import replica_sequences
from tasks.plan.search import Speed
from tasks.plan.served import Served
from tasks.plan.settings import PlanSettings
from tasks.plan.speed import Prediction, SpeedModel


@dataclass(frozen=True, eq=False)
class Predictor:
    """Speeds of one model on one target, at the asked concurrency."""

    model: SpeedModel
    concurrency: int
    _screened: dict[tuple[int, ...], Prediction | None] = field(default_factory=dict)

    def screen(self, sizes: Sizes, context: int) -> Speed:
        """Of the layout without its pipeline: a token passes all layers all the same, and what stages send is little.

        Layouts that differ in the pipeline alone are computed once. They are told apart by `predict`.
        """
        sequences = replica_sequences(self.concurrency, sizes)
        flat = replace(sizes, pp=1, dp=sizes.group_replicas)
        key = (flat.tp, flat.ep, flat.dcp, sequences, context)
        if key not in self._screened:
            self._screened[key] = self.model.decode_seconds(flat, context, sequences)
        return self._speed(self._screened[key])

    def predict(self, sizes: Sizes, context: int) -> Speed:
        """The prediction for the layout as it is."""
        sequences = replica_sequences(self.concurrency, sizes)
        return self._speed(self.model.decode_seconds(sizes, context, sequences))

    def _speed(self, found: Prediction | None) -> Speed:
        if found is None:
            return Speed()
        return Speed(found.seconds, self.concurrency / found.seconds, dict(found.terms))


def predictor(structure: Structure, held: Served, settings: PlanSettings, dtypes: CacheDtypes) -> Predictor:
    """What predicts the speed of layouts."""
    names: tuple[Held, ...] = ("cache", "index", "state", "conv")
    bytes_of = {name: BYTES.get(dtypes.of(name), 1) for name in names}
    work = WorkModel(structure, held.stored, bytes_of)
    return Predictor(SpeedModel(work, settings.spec), settings.concurrency)
