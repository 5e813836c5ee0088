"""The environment of an engine for the process runtime: a venv made once from the lock file under `images/`."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0.artifacts.service import Runtime
from day0.errors import Unavailable
from day0.files import digest_of, write_json
from day0.home import home
from day0.pins import Counter, build_lock, lock_digest, pins, torch_source
from day0.process import ProcessFailed, run
from day0.progress import report
from tasks.service.engine import load_engine

log = logging.getLogger("day0.service")

MARKER = "day0-environment.json"


@dataclass(frozen=True)
class Prepared:
    """Where an engine can be started: `environment` is a venv's folder or an image's id."""

    environment: str
    lock_digest: str


def prepare(engine: str, runtime: Runtime) -> Prepared:
    """Make the engine's environment or image if it is not there yet. Takes minutes the first time.

    Safe to call early and from several runs at a time: one builds, the others wait for it.

    Raises:
        Unavailable: an index, the Docker daemon or the base image is not there, or what was built cannot serve.
    """
    config = load_engine(engine)
    if runtime == "docker":
        from day0.image import build_image

        return Prepared(build_image(config.image, config.folder), lock_digest(config.folder))
    return Prepared(str(build_environment(config.image, config.folder)), lock_digest(config.folder))


def build_environment(name: str, folder: Path) -> Path:
    """The folder of the venv that `folder`'s lock file describes; made now if it is not there, or not whole."""
    interpreter = f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"
    digest = digest_of({"lock": lock_digest(folder), "python": interpreter})
    target = home() / "environments" / f"{name}-{digest[:16]}"
    if (target / MARKER).is_file():
        return target
    with build_lock(f"{target.name}.lock", f"the engine's environment {target.name} is being made"):
        if (target / MARKER).is_file():
            return target
        # A venv cannot be moved (its scripts hold its path) and a killed build's pip may still be writing: each build
        # has a folder of its own, and the name that is looked up is a link that appears when one is whole.
        for abandoned in target.parent.glob(f"{target.name}.*/"):
            log.warning("removing %s, whose build was ended", abandoned)
            shutil.rmtree(abandoned, ignore_errors=True)
        folder_made = target.with_name(f"{target.name}.{uuid.uuid4().hex[:6]}")
        try:
            details = _install(folder, folder_made)
        except ProcessFailed as error:
            raise Unavailable(_explain(error, folder)) from error
        write_json(folder_made / MARKER, {"made_from": folder.name, "digest": digest, "python": interpreter, **details})
        link = folder_made.with_suffix(".link")
        link.unlink(missing_ok=True)
        link.symlink_to(folder_made.name)
        os.replace(link, target)
    return target


def _install(folder: Path, target: Path) -> dict[str, Any]:
    """Make the venv, install torch and the locked packages, and let the folder's check.py look at the result."""
    report(f"making the engine's environment {target.name}")
    run([sys.executable, "-m", "venv", "--without-pip", str(target)])
    python = target / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--progress-bar", "off"]
    torch, lock = folder / "torch.txt", folder / "requirements.lock"
    if torch.is_file():
        run([*pip, *torch_source(), "-r", str(torch)], on_line=Counter("torch", pins(torch)))
    run([*pip, "--require-hashes", "-r", str(lock)], on_line=Counter("packages", pins(lock)))
    report("checking the engine's environment")
    said = run([str(python), str(folder / "check.py")], env={**os.environ, "VLLM_NO_USAGE_STATS": "1"})
    return {"check": next((line for line in reversed(said) if line.strip()), "")}


def _explain(error: ProcessFailed, folder: Path) -> str:
    """pip's own error line, and where to look."""
    errors = [line for line in error.tail if line.startswith("ERROR:")]
    line = (errors or [line for line in error.tail if line.strip()] or ["it printed nothing"])[-1]
    hint = ""
    if any("torch==" in line for line in errors):
        hint = (
            "; torch for the CPU has an index of its own: set DAY0_TORCH_INDEX to its address or to a folder of wheels"
        )
    return f"the engine's environment cannot be made from {folder}: {line.removeprefix('ERROR: ')}{hint}"


def made_environments() -> list[tuple[Path, dict[str, Any]]]:
    """Every whole environment with what its marker says, for `day0 doctor`."""
    links = sorted(path for path in (home() / "environments").glob("*") if path.is_symlink())
    return [(p, json.loads((p / MARKER).read_text(encoding="utf-8"))) for p in links if (p / MARKER).is_file()]
