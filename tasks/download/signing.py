"""OpenSSF's own verifier of model signatures, in a process of its own: it prints, and may ask the network.

Run as `python -m tasks.download.signing REQUEST.json`; it talks to its parent as `tasks.download.transfer` does. The
library's high-level call would hash the whole model again; here it verifies who signed which list of digests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tasks.download.transfer import fail, tell


def main(arguments: list[str]) -> int:
    """Verify the bundle of a request; tells what was signed, or why it is not to be believed."""
    request = json.loads(Path(arguments[0]).read_text())
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from OpenSSL.crypto import X509StoreContextError
        from sigstore.errors import Error, NetworkError, TUFError

        make = {"key": _key, "certificate": _certificate, "sigstore": _sigstore}[request["kind"]]
        try:
            verifier, signature = make(request)
        except (NetworkError, TUFError) as error:
            return fail("unreachable", error)
        except OSError as error:
            return fail("trust", ValueError(f"{error.filename}: {error.strerror}"))
        except (ValueError, UnsupportedAlgorithm) as error:
            return fail("trust", error)
        try:
            manifest = verifier.verify(signature.read(Path(request["bundle"])))
        except InvalidSignature:
            return fail("signature", ValueError("the signature does not belong to what it is given for"))
        except (ValueError, LookupError, TypeError, AttributeError, X509StoreContextError, Error) as error:
            return fail("signature", error)
    except ModuleNotFoundError as error:
        return fail("library", error)
    rows = [
        [item.identifier, item.digest.algorithm, item.digest.digest_hex] for item in manifest.resource_descriptors()
    ]
    tell("signed", {"resources": rows, "ignored": sorted(manifest.serialization_type.get("ignore_paths", []))})
    return 0


def _key(request: dict[str, Any]) -> tuple[Any, Any]:
    from model_signing._signing import sign_ec_key, sign_sigstore_pb

    return sign_ec_key.Verifier(Path(request["public_key"])), sign_sigstore_pb.Signature


def _certificate(request: dict[str, Any]) -> tuple[Any, Any]:
    from model_signing._signing import sign_certificate, sign_sigstore_pb

    return sign_certificate.Verifier([Path(path) for path in request["certificate_chain"]]), sign_sigstore_pb.Signature


def _sigstore(request: dict[str, Any]) -> tuple[Any, Any]:
    from model_signing._signing import sign_sigstore

    verifier = sign_sigstore.Verifier(
        identity=request["identity"],
        oidc_issuer=request["identity_provider"],
        trust_config=Path(request["trust_config"]) if request["trust_config"] else None,
    )
    return verifier, sign_sigstore.Signature


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
