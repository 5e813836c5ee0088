"""What a finished reshard is held against: the sources' digests, the plan's account, and what lies on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from day0.checkpoint import Checkpoint
from day0.errors import InputError
from day0.safetensors_header import HeaderFault, parse, read_text
from day0.verdict import Check, Verdict
from tasks.reshard.planner import tensors_of
from tasks.reshard.writer import Hashes
from tasks.reshard.writes import TargetFile, WritePlan


def sources_check(hashes: Hashes, expected: Mapping[str, str] | None) -> Check:
    """Whether every shard that was read is the one that was recorded (a different one has been refused before)."""
    if not hashes.sources:
        reason = "nothing was hashed, so what was read was compared with nothing"
        return Check(name="source digests", verdict=Verdict.INCONCLUSIVE, reason=reason)
    unknown = [name for name in hashes.sources if name not in (expected or {})]
    measured = {"files": len(hashes.sources), "compared": len(hashes.sources) - len(unknown)}
    if unknown:
        reason = f"no recorded digest to compare {unknown[0]} with"
        return Check(name="source digests", verdict=Verdict.INCONCLUSIVE, reason=reason, measured=measured)
    reason = f"all {len(hashes.sources)} shards have the recorded SHA-256"
    return Check(name="source digests", verdict=Verdict.PASS, reason=reason, measured=measured)


def accounted_check(plan: WritePlan, checkpoint: Checkpoint) -> Check:
    """Whether every source tensor was read exactly once, or is listed as dropped."""
    read = dict(tensors_of(plan))
    for dropped in plan.dropped:
        read[dropped.tensor] = read.get(dropped.tensor, 0) + 1
    odd = sorted(name for name in read.keys() | checkpoint.tensors.keys() if read.get(name) != 1)
    measured = {"tensors": len(checkpoint.tensors), "read": len(read) - len(plan.dropped), "dropped": len(plan.dropped)}
    reason = "every source tensor was read once or is listed as dropped"
    if odd:
        reason = f"source tensor {odd[0]!r} was not read exactly once, nor dropped with a reason"
    verdict = Verdict.FAIL if odd or not plan.streams else Verdict.PASS
    return Check(name="tensors accounted for", verdict=verdict, reason=reason, measured=measured)


def read_back_check(plan: WritePlan, root: Path) -> Check:
    """Whether the files as they lie there hold the tensors of the plan, by the strict reader."""
    tensors = 0
    alike: dict[tuple[bytes, int], list[TargetFile]] = {}  # the ranks' files of a shard often are, to the byte
    for file in plan.files:
        alike.setdefault((file.header, file.nbytes), []).append(file)
    for files in alike.values():
        read: tuple[bytes, int] | None = None
        found: list[tuple[str, str, tuple[int, ...], int, int]] = []
        for file in files:
            try:
                if read != (now := read_text(root / file.name)):
                    read, found = now, _tensors(*now)
            except (HeaderFault, InputError, OSError) as error:
                reason = f"{file.name} does not read back: {error}"
                return Check(name="read back", verdict=Verdict.FAIL, reason=reason)
            planned = [t[:5] for t in file.tensors]  # all but where they are from
            if found != planned and sorted(found) != sorted(planned):
                odd = min(tensor[0] for tensor in {*found} ^ {*planned})
                reason = f"{file.name}: tensor {odd!r} is not as planned"
                return Check(name="read back", verdict=Verdict.FAIL, reason=reason)
            tensors += len(found)
    measured = {"files": len(plan.files), "tensors": tensors, "bytes": plan.bytes_written}
    verdict = Verdict.PASS if tensors else Verdict.FAIL
    reason = f"{tensors} tensors in {len(plan.files)} files read back as planned"
    return Check(name="read back", verdict=verdict, reason=reason, measured=measured)


def _tensors(text: bytes, file_bytes: int) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Name, dtype, shape, begin and end of each tensor of a header, which must be without fault."""
    header, faults = parse(text, file_bytes, "")
    if faults or header is None:
        raise faults[0]
    return [(t.name, t.dtype, t.shape, t.begin, t.end) for t in header.tensors.values()]
