"""A command in a container that is given nothing but what it is told to read, and one folder to write to.

For what is not trusted (a release's own code) and for what must not hang on this machine (a compiler): no network, a
read-only root, no capabilities, no root user, limits on memory and processes.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound
from docker.types import Mount

from day0 import deadline
from day0.errors import Unavailable
from day0.image import docker_client
from day0.process import ProcessFailed

logger = logging.getLogger("day0.container")

USER = 10001
#: Lines of output that are kept to tell why a command failed.
TAIL = 200
#: Bytes of its beginning, where a compiler's first error is.
HEAD = 1 << 20
#: Threads count as processes.
PIDS = 512


def run_contained(
    image: str,
    command: Sequence[str],
    *,
    inputs: Mapping[str, Path],
    output: tuple[str, Path],
    env: Mapping[str, str] | None = None,
    folder: str = "/tmp",
    on_line: Callable[[str], None] | None = None,
    memory: int = 8 << 30,
    seconds: int = 1800,
) -> None:
    """Run `command` in a container of `image`, which is removed when it ends or this deadline passes.

    Args:
        inputs: folders or files of this machine by the path that the container sees them under, read-only.
        output: the path that the container sees, and the folder of this machine that it may write to. What lies there
            afterwards is the container's word: `read_output` reads it.
        folder: where it runs, as the container sees it.
        on_line: told the first lines that it printed, when it has ended.
        memory: bytes; /tmp and /dev/shm count.
        seconds: its own limit, which also holds where this process is killed.

    Raises:
        Unavailable: the daemon does not answer, or the image is not there.
        ProcessFailed: the command failed, or took longer than `seconds`.
    """
    inside, outside = output
    outside.chmod(0o777)
    mounts = [Mount(target, str(path.resolve()), type="bind", read_only=True) for target, path in inputs.items()]
    mounts.append(Mount(inside, str(outside.resolve()), type="bind"))
    with docker_client() as client:
        try:
            container = client.containers.create(
                image,
                entrypoint=["timeout", "--kill-after=5", str(seconds), *command],
                environment=dict(env or {}),
                user=f"{USER}:{USER}",
                network_mode="none",
                read_only=True,
                tmpfs={"/tmp": "rw,nosuid,nodev,exec,mode=1777"},
                working_dir=folder,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                mem_limit=memory,
                memswap_limit=memory,
                pids_limit=PIDS,
                init=True,
                mounts=mounts,
                labels={"day0.contained": str(os.getpid())},
            )
        except ImageNotFound as error:
            raise Unavailable(f"the image {image} is not there") from error
        except APIError as error:
            raise Unavailable(f"Docker refuses the container: {error.explanation}") from error
        try:
            _run(container, list(command), seconds, on_line)
        finally:
            container.remove(force=True)


def _run(container: Any, command: list[str], seconds: int, on_line: Callable[[str], None] | None) -> None:
    def end() -> None:
        with suppress(DockerException):  # it has ended by itself
            container.kill()

    try:
        with deadline.current().guard(end):
            container.start()
            ended = container.wait(timeout=seconds + 60)
        container.reload()
        said = container.logs(tail=TAIL).decode(errors="replace").splitlines()
        if on_line:
            for line in _first_lines(container):
                on_line(line)
    except DockerException as error:
        raise Unavailable(f"the container of {command[0]} did not run: {error}") from error
    for line in said:
        logger.debug("%s", line)
    if code := ended["StatusCode"]:
        if container.attrs["State"].get("OOMKilled"):
            said.append("it was out of memory")
        if code == 124:
            said.append(f"it took longer than {seconds} s")
        raise ProcessFailed(command, code, said)


def _first_lines(container: Any) -> list[str]:
    """The beginning of what it printed, at most `HEAD` bytes."""
    said = b""
    for piece in container.logs(stream=True):
        said += piece
        if len(said) > HEAD:
            break
    return said[:HEAD].decode(errors="replace").splitlines()


def read_output(folder: Path, name: str, at_most: int) -> bytes:
    """A file that a container wrote. Not through a link, which could lead to a file of this machine.

    Raises:
        OSError: it is not there.
        ValueError: it is no regular file, or larger than `at_most` bytes.
    """
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        kind = os.fstat(descriptor)
        if not stat.S_ISREG(kind.st_mode) or kind.st_size > at_most:
            raise ValueError(f"{name} is no regular file of at most {at_most:,} bytes")
        return file.read(at_most)
