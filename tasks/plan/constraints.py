"""What divides and what does not: the named constraints of a layout, as vLLM has them."""

from __future__ import annotations

from dataclasses import dataclass

from day0.architecture.structure import Structure


@dataclass(frozen=True)
class Sizes:
    """A layout's parallel sizes."""

    tp: int
    pp: int
    ep: int = 1
    dp: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Obstacle:
    """Why sizes are impossible: `dimension` of `size` cannot be divided by `divisor` (None: nothing is divided)."""

    reason: str
    dimension: str
    size: int
    divisor: int | None


def obstacles(structure: Structure, sizes: Sizes) -> list[Obstacle]:
    """Everything about a model that forbids these sizes, whatever the memory.

    The dimensions are those that the family's rules split by. Fewer units than ranks are no obstacle where a rule
    lets ranks share them (key and value heads), as long as they can be shared evenly.
    """
    found = []
    tp, config = sizes.tp, structure.config
    for name, units, shared in _divided(structure):
        if shared and units < tp:
            if tp % units:
                reason = f"tp {tp} is no multiple of {name} {units}, so the ranks cannot share them evenly"
                found.append(Obstacle(reason, name, units, tp))
        elif units % tp:
            found.append(Obstacle(f"{name} {units} is not divisible by tp {tp}", name, units, tp))
    if structure.padded_vocab % tp:
        vocab = structure.padded_vocab
        padded = f" (padded from {config.vocab_size})" if vocab != config.vocab_size else ""
        found.append(Obstacle(f"vocab_size {vocab}{padded} is not divisible by tp {tp}", "vocab_size", vocab, tp))
    if sizes.pp > config.layers:
        reason = f"num_hidden_layers {config.layers} is less than pp {sizes.pp}: a stage would be empty"
        found.append(Obstacle(reason, "num_hidden_layers", config.layers, sizes.pp))
    if sizes.ep > 1:
        reason = f"ep {sizes.ep} needs experts to divide, and the model has none"
        found.append(Obstacle(reason, "num_experts", 0, sizes.ep))
    return found


def _divided(structure: Structure) -> list[tuple[str, int, bool]]:
    """What the splits count, each once: the config's name for it, how many there are, whether ranks may share one."""
    divided = {}
    for part in structure.parts:
        if part.split.by and (part.layer in (None, 0)):  # the layers are all alike
            size = structure.family.family.sizes.get(part.split.by)
            divided[part.split.by] = (size.title if size else part.split.by, part.units, part.split.replicate)
    return list(divided.values())
