"""Layout `hf`: the source's names and its cut into shards, one folder a rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from day0.architecture.bound import BoundFamily
from day0.architecture.cuts import Cutter
from day0.architecture.slicing import World
from tasks.reshard.layouts.base import Layout, Place, Placed
from tasks.reshard.reflink import BLOCK
from tasks.reshard.units import Unit

#: The least run of bytes that is worth a file of its own where blocks can be shared.
LEAST_SHARED = 8 << 20


class HfLayout(Layout):
    """A complete safetensors folder a rank, with the source's names and its cut into shards."""

    def __init__(
        self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, cut_to_share: bool = False
    ) -> None:
        super().__init__(bound, world, cutter, part_bytes, cut_to_share)
        self.held: list[dict[str, list[Placed]]] = [{} for _ in world.ranks()]
        """By rank and the source's file."""

    def place(self, units: Iterable[Unit]) -> None:
        listed = sorted(units, key=lambda unit: (unit.draft.inputs[0].file, unit.draft.inputs[0].begin, unit.output))
        self.note_head(listed)
        stage_ranks = self.world.stage_ranks
        for unit in listed:
            file, cuts = unit.draft.inputs[0].file, self.cutter.cuts(unit.kind)
            empty = 0 in unit.kind.shape
            owners = self.owners(unit)
            made: dict[int, Placed] = {}  # by its cut's id
            for stage in self.stages(unit):
                for rank in owners:
                    cut = cuts[rank]
                    if 0 in cut.shape and not empty:
                        continue  # an uneven split leaves the last ranks nothing
                    placed = made.get(id(cut))
                    if placed is None:
                        placed = made[id(cut)] = Placed(unit.name, unit.kind.dtype, cut.shape, ((unit, cut),))
                    self.held[stage * stage_ranks + rank].setdefault(file, []).append(placed)

    def files(self) -> Iterator[tuple[Place, list[Placed]]]:
        for rank, by_file in enumerate(self.held):
            files = [tensors for _, tensors in sorted(by_file.items())]
            if self.cut_to_share:
                files = [run for tensors in files for run in self._runs(tensors)]
            by_file.clear()  # whoever takes the files needs the memory
            for number, tensors in enumerate(files, 1):
                name = f"rank-{rank:05d}/model-{number:05d}-of-{len(files):05d}.safetensors"
                yield Place(name, rank), tensors

    def _runs(self, tensors: list[Placed]) -> list[list[Placed]]:
        """Runs of whole tensors that lie side by side in the source, each by itself; the rest together."""
        runs: list[list[Placed]] = []
        end = -1
        for placed in tensors:
            stored = self._stored(placed)
            if stored is None:
                end = -1
                continue
            if stored[0] != end:
                runs.append([])
            runs[-1].append(placed)
            end = stored[1]
        large = [run for run in runs if sum(placed.nbytes for placed in run) >= LEAST_SHARED]
        taken = {id(placed) for run in large for placed in run}
        rest = [placed for placed in tensors if id(placed) not in taken]
        return [*large, *([rest] if rest else [])]

    def data_at(self, laid: Sequence[tuple[Placed, int]]) -> int | None:
        """As the first tensor that is copied in one run lies in the source: those after it, as a rule, do so too."""
        at = 0
        for placed, nbytes in laid:
            if stored := self._stored(placed):
                aligned = (stored[0] - at) % BLOCK
                return None if aligned % 8 else aligned
            at += nbytes
        return None

    @staticmethod
    def _stored(placed: Placed) -> tuple[int, int] | None:
        """Where the tensor's bytes lie in the source, if they are one run that is copied as it is."""
        if len(placed.parts) != 1:
            return None
        unit, cut = placed.parts[0]
        if unit.draft.conversion or len(cut.runs) != 1 or cut.runs[0].rows != 1 or cut.padding:
            return None
        begin = unit.draft.inputs[0].begin + cut.runs[0].offset
        return begin, begin + cut.runs[0].nbytes
