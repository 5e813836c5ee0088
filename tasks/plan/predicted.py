"""The speed that layouts are ranked by."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from day0.architecture.cache import CacheDtypes, element_bytes
from day0.architecture.parallel import Sizes
from day0.architecture.structure import Structure
from day0.architecture.work import WorkModel
from tasks.plan.memory import replica_sequences
from tasks.plan.search import Speed
from tasks.plan.served import Served
from tasks.plan.settings import PlanSettings
from tasks.plan.speed import SpeedModel


@dataclass(frozen=True, eq=False)
class Predictor:
    """Speeds of one model on one target, at the asked concurrency."""

    model: SpeedModel
    concurrency: int
    output: int | None
    """Tokens of an answer: then the throughput counts what prompts take. None: decode alone."""
    _screened: dict[tuple[int, ...], Speed] = field(default_factory=dict)

    def screen(self, sizes: Sizes, context: int) -> Speed:
        """Of the layout without its pipeline: a token passes all layers all the same, and what stages send is little.

        Layouts that differ in the pipeline alone are computed once. They are told apart by `predict`.
        """
        sequences = replica_sequences(self.concurrency, sizes)
        flat = replace(sizes, pp=1, dp=sizes.group_replicas)
        key = (flat.tp, flat.ep, flat.dcp, sequences, context)
        if key not in self._screened:
            self._screened[key] = self.predict(flat, context, sequences)
        return self._screened[key]

    def predict(self, sizes: Sizes, context: int, sequences: int | None = None) -> Speed:
        """The prediction for the layout as it is, with so many sequences on a replica (None: its share of those asked).

        The throughput is that of all sequences that are asked for.
        """
        sequences = sequences or replica_sequences(self.concurrency, sizes)
        if self.output:
            served = self.model.serving(sizes, max(1, context - self.output), self.output, sequences)
            found = served.decode if served else None
            each = served.whole_seconds / self.output if served else 0.0
        else:
            found = self.model.decode_seconds(sizes, context, sequences)
            each = found.seconds if found else 0.0
        return Speed(found.seconds, self.concurrency / each, dict(found.terms)) if found else Speed()

    def prefill(self, sizes: Sizes, tokens: int, chunk: int) -> float | None:
        """Seconds until one prompt is computed, alone in a replica, in passes of `chunk` tokens."""
        found = self.model.prefill_seconds(sizes, tokens, 1, min(chunk, tokens))
        return found.seconds if found else None


def predictor(structure: Structure, held: Served, settings: PlanSettings, dtypes: CacheDtypes) -> Predictor:
    """What predicts the speed of layouts."""
    work = WorkModel(structure, held.stored, element_bytes(structure, dtypes))
    return Predictor(SpeedModel(work, settings.spec), settings.concurrency, settings.output)
