"""Releases that we sign ourselves, for tests of signatures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import hashing, signing

from flows.cli import cli
from tests.download.builder import two_shards

DATA = Path(__file__).parent / "data" / "signatures"
KEY = DATA / "signing-key-pub.pem"

Signed = Callable[..., Path]
"""Makes a sound release that is signed with our key (tests/download/conftest.py)."""


def private_key(path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


def signed_release(
    root: Path, key: Path, hash_config: hashing.Config | None = None, ignored: tuple[str, ...] = ()
) -> Path:
    """A sound release, signed by the library itself."""
    two_shards(root)
    config = (hash_config or hashing.Config()).set_ignored_paths(paths=[root / name for name in ignored])
    signer = signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(config)
    signer.sign(root, root / "model.sig")
    return root


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, arguments), "--json"])


def check(answer: Result) -> dict[str, Any]:
    """The check of the signature."""
    found: dict[str, Any] = {each["name"]: each for each in json.loads(answer.stdout)["checks"]}
    return dict(found["signature"])
