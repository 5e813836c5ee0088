"""What `day0 doctor` says of compilers, here and in a container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from flows import doctor

BASE, COMPILERS = "day0/debian-base:bookworm", "day0/debian-compilers:bookworm"
BUILT = "day0/kernel-compilers:"


@pytest.fixture
def having(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A Docker daemon with images whose names begin so."""

    def have(*names: str) -> None:
        def get(tag: str) -> Any:
            if not tag.startswith(names):
                raise docker.errors.ImageNotFound(tag)
            return object()

        monkeypatch.setattr(docker, "from_env", lambda **_: SimpleNamespace(images=SimpleNamespace(get=get)))

    return have


def test_it_says_whether_kernels_can_be_built_in_a_container(having: Callable[..., None]) -> None:
    having(BASE)
    found = doctor._compilers_image()
    assert (found.present, found.found) == (False, f"{COMPILERS} is not there")
    assert found.remedy == "run images/debian-base/make --compilers"
    having(COMPILERS)
    found = doctor._compilers_image()
    assert found.present
    assert found.found.startswith("not built yet")
    assert "day0 kernels build --runtime docker" in found.remedy
    having(BUILT, COMPILERS)
    found = doctor._compilers_image()
    assert (found.present, found.remedy) == (True, "")
    assert found.found.startswith(BUILT)
    having(COMPILERS)
    assert (doctor._base_image().present, doctor._base_image().remedy) == (False, "run images/debian-base/make")


def test_without_docker_there_is_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert {(f.present, f.remedy) for f in (doctor._base_image(), doctor._compilers_image())} == {(False, "see Docker")}


def test_compilers_of_this_machine_have_a_version_or_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'c++ (Some Vendor 14.1.0-3) 14.1.0'\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    found = {finding.what: finding for finding in doctor._compilers()}
    assert list(found) == ["C++ compiler", "nvcc", "Triton"]
    assert (found["C++ compiler"].present, found["C++ compiler"].found) == (True, f"14.1.0, {compiler}")
    monkeypatch.setenv("CXX", "no-such-compiler")
    lacking = doctor._compilers()[0]
    assert (lacking.present, lacking.found) == (False, "CXX=no-such-compiler is no program")
    assert lacking.remedy.startswith("install a C++ compiler")
