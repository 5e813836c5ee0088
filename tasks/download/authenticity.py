"""Was a bundle signed by whom the user trusts? OpenSSF's own verifier says so, in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0.errors import InputError
from day0.verdict import Verdict
from tasks.download.bundle import Bundle, Kind
from tasks.download.foreign import ask

REMEDY = "pip install 'day0[signing]'"
ASKED_BY: Mapping[Kind, str] = {
    "key": "--public-key",
    "certificate": "--certificate-chain",
    "sigstore": "--identity and --identity-provider",
}
_WHO: Mapping[Kind, str] = {"key": "key", "certificate": "certificate authority", "sigstore": "identity"}


@dataclass(frozen=True)
class Trust:
    """Whom the user trusts to have signed: a key, or whom a certificate vouches for, or an identity."""

    public_key: Path | None = None
    certificate_chain: tuple[Path, ...] = ()
    identity: str | None = None
    identity_provider: str | None = None
    trust_config: Path | None = None
    """Of a Sigstore instance (its `ClientTrustConfig` in JSON); None: the public one, asked over the network."""

    @property
    def kind(self) -> Kind | None:
        if self.public_key:
            return "key"
        if self.certificate_chain:
            return "certificate"
        return "sigstore" if self.identity else None


def authenticate(bundle: Bundle, trust: Trust) -> tuple[Verdict, str]:
    """Whether the bundle was signed by whom the user trusts, and why.

    A certificate is looked at as of its own first day: the format has no time of signing.

    Raises:
        InputError: what the user trusts cannot be read.
    """
    if trust.kind != bundle.kind:
        return Verdict.FAIL, f"it is not signed by what was given: give {ASKED_BY[bundle.kind]}"
    told = _verifier(bundle, trust)
    if error := told.get("error"):
        match error["kind"]:
            case "library":
                return Verdict.INCONCLUSIVE, f"signatures are verified by the package model-signing: {REMEDY}"
            case "unreachable":
                remedy = "give its trust configuration with --trust-config"
                return Verdict.INCONCLUSIVE, f"Sigstore's root of trust cannot be fetched; {remedy}: {error['text']}"
            case "trust":
                raise InputError(f"{ASKED_BY[bundle.kind]} cannot be used: {error['text']}")
            case _:
                return Verdict.FAIL, f"its signature is not by the {_WHO[bundle.kind]} given: {error['text']}"
    signed = {name: (algorithm, digest) for name, algorithm, digest in told["signed"]["resources"]}
    listed = {part.identifier: part.digest for part in bundle.parts}
    ignored = {path.rstrip("/") for path in told["signed"]["ignored"]}
    if {name: digest for name, (_, digest) in signed.items()} != listed or ignored != set(bundle.ignored):
        return Verdict.FAIL, "the verifier read another list of files in it than day0"
    return Verdict.PASS, f"signed by the {_WHO[bundle.kind]} given: {len(bundle.files)} files"


def _verifier(bundle: Bundle, trust: Trust) -> dict[str, Any]:
    """Run the library's verifier in its process, on the very bytes that were read; returns what it told."""
    with tempfile.TemporaryDirectory() as folder:
        place, request = Path(folder, "bundle.json"), Path(folder, "request.json")
        place.write_bytes(bundle.data)
        asked = {
            "bundle": str(place),
            "kind": bundle.kind,
            "public_key": _absolute(trust.public_key),
            "certificate_chain": [_absolute(path) for path in trust.certificate_chain],
            "identity": trust.identity,
            "identity_provider": trust.identity_provider,
            "trust_config": _absolute(trust.trust_config),
        }
        request.write_text(json.dumps(asked))
        return ask("tasks.download.signing", [str(request)])


def _absolute(path: Path | None) -> str | None:
    return str(path.absolute()) if path else None
