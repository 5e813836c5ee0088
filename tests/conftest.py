"""Before anything imports Prefect: where its server will be, and that nothing is kept in the user's home."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.orchestrator import QUIET

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]

LACKED = pytest.StashKey[str]()
HOME = Path(tempfile.mkdtemp(prefix="day0-tests-"))
os.environ.update(QUIET)
os.environ["DAY0_HOME"] = str(HOME)
os.environ["DAY0_SERVER_PORT"] = str(PORT)
os.environ["PREFECT_HOME"] = str(HOME / "prefect")
os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{PORT}/api"
os.environ["HF_HUB_OFFLINE"] = ""


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)  # what a server that just ends still writes is not worth a failure


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say why; where nothing may be skipped, such a test fails instead."""
    no_skips = bool(os.environ.get("DAY0_NO_SKIPS"))
    for item in items:
        for marker, lacking in LACKING.items():
            if item.get_closest_marker(marker) is None or (why := lacking()) is None:
                continue
            if no_skips:
                item.stash[LACKED] = why
            else:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if LACKED in item.stash:
        pytest.fail(f"this test would be skipped, and DAY0_NO_SKIPS allows none: {item.stash[LACKED]}", pytrace=False)


@functools.cache
def _no_reference() -> str | None:
    lacking = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    return f"without {' and '.join(lacking)}: pip install 'day0[reference]'" if lacking else None


@functools.cache
def _no_base(base: str) -> str | None:
    import docker

    from day0.image import BASES

    try:
        docker.from_env(timeout=20).images.get(base)
    except docker.errors.ImageNotFound:
        return f"the base image {base} is not there: run {BASES[base]}"
    except docker.errors.DockerException as error:
        return f"no Docker daemon: {str(error).splitlines()[0]}"
    return None


@functools.cache
def _no_postgres() -> str | None:
    return None if os.environ.get("DAY0_TEST_POSTGRES") else "no PostgreSQL: set DAY0_TEST_POSTGRES to its URL"


@functools.cache
def _no_reflink() -> str | None:
    lacking = [name for name in ("mkfs.xfs", "mkfs.btrfs", "filefrag") if shutil.which(name) is None]
    if os.geteuid() or lacking:
        return f"no file systems in loop files: {', '.join(lacking) or 'root'} needed (xfsprogs, btrfs-progs)"
    done = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    return f"no loop device: {done.stderr.strip()}" if done.returncode else None


@functools.cache
def _no_mount() -> str | None:
    return None if os.geteuid() == 0 and shutil.which("mount") else "this account may mount nothing: root needed"


@functools.cache
def _no_compiler() -> str | None:
    from day0.errors import Unavailable
    from tasks.kernels.compiler import cxx

    try:
        cxx()
    except Unavailable as error:
        return str(error)
    return None


@functools.cache
def _no_nvcc() -> str | None:
    from day0.errors import Unavailable
    from tasks.kernels.compiler import nvcc

    try:
        nvcc()
    except Unavailable as error:
        return str(error)
    return None


@functools.cache
def _without(package: str, extra: str) -> str | None:
    return None if importlib.util.find_spec(package) else f"without {package}: pip install 'day0[{extra}]'"


LACKING: dict[str, Callable[[], str | None]] = {
    "reference": _no_reference,
    "docker": functools.partial(_no_base, "day0/debian-base:bookworm"),
    "compilers": functools.partial(_no_base, "day0/debian-compilers:bookworm"),
    "postgres": _no_postgres,
    "compiler": _no_compiler,
    "nvcc": _no_nvcc,
    "triton": functools.partial(_without, "triton", "kernels"),
    "mount": _no_mount,
    "reflink": _no_reflink,
    "dask": functools.partial(_without, "prefect_dask", "dask"),
    "ray": functools.partial(_without, "prefect_ray", "ray"),
}
