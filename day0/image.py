"""Docker images, each built from its folder under `images/`.

The wheels are downloaded on the host, by pip with this machine's own settings, and handed to the build by a server on
the loopback: the build needs no index, proxy, mirror or certificate, and no layer holds the wheels.
"""

from __future__ import annotations

import logging
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, BuildError, DockerException, ImageNotFound

from day0 import deadline
from day0.errors import Unavailable
from day0.files import sha256_file
from day0.pins import build_lock, lock_digest, pip_download, torch_source
from day0.process import ProcessFailed
from day0.progress import report

log = logging.getLogger("day0.image")

BASE = "day0/debian-base:bookworm"
#: What images are made from, and what makes it.
BASES = {
    BASE: "images/debian-base/make",
    "day0/debian-compilers:bookworm": "images/debian-base/make --compilers",
}
#: The base's Python and C library: wheels are downloaded for these, whatever day0 itself runs on.
BASE_PYTHON = (3, 11)
BASE_GLIBC = 36
BUILD_LABEL = "day0.build"
OWNER_LABEL = "day0.owner"


@contextmanager
def docker_client() -> Iterator[Any]:
    """A client of the Docker daemon.

    Raises:
        Unavailable: the daemon does not answer.
    """
    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except DockerException as error:
        raise Unavailable(
            f"the Docker daemon does not answer ({_first_line(error)}): start it (`systemctl start docker`, or "
            "`dockerd &` as root), or use --runtime process"
        ) from error
    try:
        yield client
    finally:
        client.close()


def image_tag(name: str, folder: Path) -> str:
    """The tag says what the image was made from: any change in the folder is another image."""
    return f"day0/{name}:{lock_digest(folder)[:16]}"


def base_of(folder: Path) -> str:
    """The base that an image's Dockerfile names by default, one of BASES."""
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    return next(base for base in BASES if f"\nARG BASE={base}\n" in text)


def build_image(name: str, folder: Path) -> str:
    """The id of the image that `folder` describes; built now if it is not there.

    Raises:
        Unavailable: no daemon, no base image, no wheels, or the build failed.
    """
    tag = image_tag(name, folder)
    with docker_client() as client:
        if (found := _image_id(client, tag)) is not None:
            return found
        with build_lock(f"image-{name}.lock", f"another run builds the image {tag}"):
            if (found := _image_id(client, tag)) is not None:
                return found
            base = base_of(folder)
            if _image_id(client, base) is None:
                raise Unavailable(f"the base image {base} is not there: make it once, as root, with {BASES[base]}")
            remove_leftovers(client, name)
            try:
                with tempfile.TemporaryDirectory(prefix="day0-wheels-") as wheels:
                    _download_wheels(folder, Path(wheels))
                    with _served(Path(wheels), _port(folder)) as url:
                        return _build(client, folder, tag, base, url)
            finally:
                remove_leftovers(client, name)


def remove_leftovers(client: Any, name: str) -> None:
    """Remove the containers that a killed build of this image left: they have the build's label and no owner."""
    for container in client.containers.list(all=True, filters={"label": f"{BUILD_LABEL}={name}"}):
        if OWNER_LABEL not in container.labels and container.status in ("created", "exited", "dead"):
            log.info("removing %s, left by a build that was ended", container.short_id)
            container.remove()


def _build(client: Any, folder: Path, tag: str, base: str, wheels: str) -> str:
    report(f"building the image {tag}")
    lines: list[str] = []
    try:
        # Closing the client's connections is what makes the daemon give the build up.
        with deadline.current().guard(client.api.close):
            stream = client.api.build(
                path=str(folder),
                tag=tag,
                buildargs={"BASE": base, "WHEELS": wheels},
                network_mode="host",
                rm=True,
                forcerm=True,
                decode=True,
            )
            for event in stream:
                if error := event.get("error"):
                    cause = next((line for line in reversed(lines) if "ERROR" in line), "")
                    raise Unavailable(f"the image {tag} cannot be built: {error}" + (f" ({cause})" if cause else ""))
                for line in event.get("stream", "").splitlines():
                    if line.strip():
                        lines.append(line.strip())
                        log.info("build: %s", line.strip())
                        report(f"image: {line.strip()[:100]}")
    except (APIError, BuildError) as error:
        raise Unavailable(f"the image {tag} cannot be built: {_first_line(error)}") from error
    found = _image_id(client, tag)
    if found is None:
        raise Unavailable(f"the build of {tag} ended without an image: {lines[-1] if lines else 'it said nothing'}")
    return found


def _download_wheels(folder: Path, into: Path) -> None:
    options = []
    if sys.version_info[:2] != BASE_PYTHON:
        version = ".".join(map(str, BASE_PYTHON))
        options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", version]
        for glibc in range(BASE_GLIBC, 16, -1):
            options += ["--platform", f"manylinux_2_{glibc}_{platform.machine()}"]
    torch, lock = folder / "torch.txt", folder / "requirements.lock"
    try:
        if torch.is_file():
            pip_download(torch, into, [*options, *torch_source()])
        pip_download(lock, into, [*options, "--require-hashes"])
    except ProcessFailed as error:
        errors = [line for line in error.tail if line.startswith("ERROR:")]
        raise Unavailable(
            f"the wheels of {folder.name} cannot be downloaded: {(errors or [str(error)])[-1]}"
        ) from error


@contextmanager
def _served(folder: Path, port: int) -> Iterator[str]:
    """Serve a folder on the loopback while the body runs."""
    handler = partial(_QuietHandler, directory=str(folder))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def _port(folder: Path) -> int:
    """The same port for the same pins: the address is a build argument, and another would void the cached layers."""
    return 20_000 + int(sha256_file(folder / "requirements.lock")[:8], 16) % 10_000


def _image_id(client: Any, tag: str) -> str | None:
    try:
        image_id: str = client.images.get(tag).id
    except ImageNotFound:
        return None
    return image_id


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
