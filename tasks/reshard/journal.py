"""What of a run is done and on the disk, so that a killed one goes on from there.

One JSON object a line, appended and synced; a line that a kill tore is ignored. Later lines supersede earlier ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.reshard.jobs import ShardResult, State
from tasks.reshard.targets import Finished


class Journal:
    """The journal at `path`; without a path nothing is kept, and nothing was."""

    def __init__(self, path: Path | None) -> None:
        self.shards: dict[str, ShardResult] = {}
        self.targets: dict[str, Finished] = {}
        self._path = path
        if path and path.exists():
            for line in path.read_bytes().split(b"\n"):
                self._take(line)

    def add(self, result: ShardResult) -> None:
        """A shard that was read and verified, whose bytes are on the disk, and the targets that became whole."""
        self.shards[result.name] = result
        shard = {"shard": result.name, "sha256": result.sha256, "states": result.states, "errors": result.errors}
        self._append([shard])
        self.add_targets(result.finished)

    def add_targets(self, finished: Iterable[Finished]) -> None:
        lines = []
        for target in finished:
            self.targets[target.name] = target
            state = [target.size, target.mtime_ns]
            lines.append({"target": target.name, "state": state, "sha256": target.sha256})
        self._append(lines)

    def forget(self, shards: Iterable[str]) -> None:
        """Shards that are about to be done again: what is recorded of them is no longer true."""
        self._append([{"shard": name, "void": True} for name in shards if self.shards.pop(name, None)])

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if not self._path or not lines:
            return
        text = "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines)
        with self._path.open("ab") as file:
            # A line of its own, whatever a torn one before it lacks.
            file.write(b"\n" + text.encode())
            file.flush()
            os.fsync(file.fileno())

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if "shard" in entry:
                self.shards.pop(entry["shard"], None)
                if not entry.get("void"):
                    states = {name: _state(value) for name, value in entry["states"].items()}
                    errors: Mapping[str, Mapping[str, float]] = entry["errors"]
                    self.shards[entry["shard"]] = ShardResult(entry["shard"], states, entry["sha256"], errors)
            elif "target" in entry:
                size, mtime_ns = entry["state"]
                self.targets[entry["target"]] = Finished(entry["target"], size, mtime_ns, entry["sha256"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return


def _state(value: Any) -> State:
    size, mtime_ns, inode = value
    return size, mtime_ns, inode
