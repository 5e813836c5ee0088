"""What turns a folder of weights into a release: an index over several shards, and a list of hashes."""

from __future__ import annotations

from pathlib import Path

from day0.files import sha256_file, write_json

# ChatML, as SmolLM2's own template has it; written out here for tests that need some template.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_index(root: Path, weight_map: dict[str, str], total_size: int) -> None:
    """Write `model.safetensors.index.json`: tensor name → shard."""
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(root / "model.safetensors.index.json", index)


def write_hashes(root: Path) -> None:
    """Write `SHA256SUMS` over every file of the release, in `sha256sum`'s own format."""
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    (root / "SHA256SUMS").write_text("".join(f"{sha256_file(root / name)}  {name}\n" for name in names))
