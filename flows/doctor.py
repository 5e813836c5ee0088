"""What day0 needs of a machine, looked at one by one."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from day0.errors import Day0Error
from day0.home import make_home
from day0.ledger import Ledger
from day0.target import machine_memory
from flows.orchestrator import running_server

GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that day0 uses. `needed`: without it no command that keeps a record works."""

    what: str
    present: bool
    found: str
    remedy: str = ""
    needed: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Finding]:
    """Look at everything; a part that is broken is a finding, not an error."""
    return [
        _python(),
        _home(),
        _machine(),
        _ledger(),
        _orchestrator(),
        _reference(),
        _environments(),
        *_compilers(),
        _docker(),
        _base_image(),
        _compilers_image(),
        _hub(),
    ]


def _python() -> Finding:
    return Finding("Python", True, platform.python_version(), needed=True)


def _home() -> Finding:
    try:
        place = make_home()
    except Day0Error as error:
        return Finding("home", False, str(error), "set DAY0_HOME to a folder that can be written", needed=True)
    return Finding("home", True, f"{place}, {shutil.disk_usage(place).free / GIB:.0f} GiB free", needed=True)


def _machine() -> Finding:
    return Finding("machine", True, f"{os.cpu_count()} cores, {machine_memory() / GIB:.1f} GiB of memory")


def _ledger() -> Finding:
    try:
        ledger = Ledger()
    except Day0Error as error:
        return Finding("ledger", False, str(error), "start the database, or unset DAY0_LEDGER_URL", needed=True)
    return Finding("ledger", True, ledger.engine.url.render_as_string(hide_password=True), needed=True)


def _orchestrator() -> Finding:
    if url := os.environ.get("PREFECT_API_URL"):
        return Finding("orchestrator", True, f"yours, at {url}")
    server = running_server()
    if server is None:
        return Finding("orchestrator", True, "not running", "none: the next `day0 adapt` starts it")
    return Finding("orchestrator", True, f"running at {server.ui}", "`day0 server stop` ends it")


def _reference() -> Finding:
    lacking = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if lacking:
        remedy = "pip install 'day0[reference]' (README, “Where torch comes from”)"
        return Finding("reference", False, f"without {' and '.join(lacking)}: no smoke, no operator scan", remedy)
    return Finding("reference", True, "torch and transformers")


def _environments() -> Finding:
    from tasks.service.environment import made_environments

    made = [path.name for path, _ in made_environments()]
    if not made:
        return Finding("engines", True, "no environment made yet", "none: `day0 adapt` and `day0 serve` make it")
    return Finding("engines", True, ", ".join(made))


def _compilers() -> list[Finding]:
    """Those that kernels are built with on this machine."""
    from tasks.kernels import compiler

    return [
        _compiler("C++ compiler", compiler.cxx),
        _compiler("nvcc", compiler.nvcc),
        _compiler("Triton", compiler.triton),
    ]


def _compiler(what: str, find: Callable[[], Any]) -> Finding:
    try:
        found = find()
    except Day0Error as error:
        why, _, remedy = str(error).partition(": ")
        return Finding(what, False, why, remedy)
    version = re.search(r"\d+\.\d+\.\d+", found.version)
    return Finding(what, True, f"{version[0] if version else found.version}, {found.path}")


def _docker() -> Finding:
    import docker

    try:
        client = docker.from_env(timeout=10)
        version = client.version()["Version"]
    except docker.errors.DockerException as error:
        return Finding("Docker", False, str(error).splitlines()[0], "install it (Debian: docker.io) and start dockerd")
    return Finding("Docker", True, f"engine {version}")


def _base_image() -> Finding:
    from day0.image import BASE, BASES

    return _image(
        "base image", BASE, lambda: Finding("base image", False, f"{BASE} is not there", f"run {BASES[BASE]}")
    )


def _compilers_image() -> Finding:
    """Whether `day0 kernels build --runtime docker` can be run."""
    from day0.home import images
    from day0.image import BASES, base_of, image_tag
    from tasks.kernels.container import IMAGE

    what, folder = "kernels' image", images() / IMAGE
    base = base_of(folder)

    def unbuilt() -> Finding:
        found = "not built yet; its base is there"
        remedy = "none: the first `day0 kernels build --runtime docker` builds it"
        return _image(
            what, base, lambda: Finding(what, False, f"{base} is not there", f"run {BASES[base]}"), found, remedy
        )

    return _image(what, image_tag(IMAGE, folder), unbuilt)


def _image(what: str, tag: str, absent: Callable[[], Finding], found: str = "", remedy: str = "") -> Finding:
    import docker

    try:
        docker.from_env(timeout=10).images.get(tag)
    except docker.errors.ImageNotFound:
        return absent()
    except docker.errors.DockerException:
        return Finding(what, False, "no Docker", "see Docker")
    return Finding(what, True, found or tag, remedy)


def _hub() -> Finding:
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        httpx.head(url, timeout=5, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding("hub", False, f"{url}: {error}", "set HF_ENDPOINT, or use dir: sources")
    return Finding("hub", True, url)
