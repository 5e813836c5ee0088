"""The capture of a model by its own code, which a release ships: in a container, never in this process.

The container has the engine's image, whose torch and transformers run the code, no network, and of this machine only
day0's sources, the config and the release's Python files. What it answers is checked as any input is.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

from pydantic import ValidationError

from day0.container import read_output, run_contained
from day0.errors import EvidenceMissing
from day0.files import write_json
from day0.home import PROJECT, images
from day0.image import build_image
from day0.progress import report
from tasks.operators.records import Capture, CaptureRequest

logger = logging.getLogger("day0.operators")

#: The folder under images/ whose image runs the code.
IMAGE = "vllm-cpu"
MOST_ANSWERED = 256 << 20
#: Python files of a release, together: code, and not weights in disguise.
MOST_CODE = 32 << 20
MOST_FILES = 1000


def capture_by_code(folder: Path, request: CaptureRequest) -> Capture:
    """What the model of this folder calls when its own code runs.

    Raises:
        EvidenceMissing: the folder has no code, or what the container left is no answer.
        ProcessFailed: the code ended with an error.
        Unavailable: there is no Docker daemon, or no image.
    """
    with tempfile.TemporaryDirectory(prefix="day0-code-") as made:
        place = Path(made)
        place.chmod(0o755)
        code, answer = place / "code", place / "answer"
        code.mkdir()
        answer.mkdir()
        copied = _copy_code(folder, code)
        write_json(place / "request.json", request.model_copy(update={"code": "/code"}).to_json())
        (place / "request.json").chmod(0o644)
        report("building the image that runs the model's own code")
        image = build_image(IMAGE, images() / IMAGE)
        report(f"running the model's own code: {len(copied)} files")
        logger.info("running in a container without network: %s", ", ".join(copied))
        run_contained(
            image,
            ["python", "-m", "tasks.operators.capture", "/request.json", "/answer/answer.json"],
            inputs={
                "/day0/day0": PROJECT / "day0",
                "/day0/tasks": PROJECT / "tasks",
                "/day0/configs": PROJECT / "configs",
                "/code": code,
                "/request.json": place / "request.json",
            },
            output=("/answer", answer),
            env={"PYTHONPATH": "/day0", "HF_HUB_OFFLINE": "1", "HF_HOME": "/tmp/hf"},
        )
        try:
            return Capture.model_validate_json(read_output(answer, "answer.json", MOST_ANSWERED))
        except (OSError, ValueError, ValidationError) as error:
            raise EvidenceMissing(f"the model's own code left no answer that can be read: {error}") from error


def _copy_code(folder: Path, into: Path) -> list[str]:
    """Copy the config and the Python files of a release, and nothing that a link leads to; their names.

    Raises:
        EvidenceMissing: there is no Python file, or more than is believed to be a model's code.
    """
    files = [path for path in sorted(folder.rglob("*.py")) if path.is_file() and not _linked(path, folder)]
    if not files:
        raise EvidenceMissing(f"{folder} ships no code of its own: there is no Python file in it")
    if len(files) > MOST_FILES or sum(path.stat().st_size for path in files) > MOST_CODE:
        raise EvidenceMissing(f"{folder} has more Python files than a model's code is believed to be")
    for path in (*files, folder / "config.json"):
        target = into / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return [str(path.relative_to(folder)) for path in files]


def _linked(path: Path, folder: Path) -> bool:
    """Whether a file is only reached through a link that leaves the folder; those of a hub cache lead to its blobs."""
    blobs = folder.parent.parent / "blobs"
    real = path.resolve()
    return not (real.is_relative_to(folder.resolve()) or real.is_relative_to(blobs.resolve()))
