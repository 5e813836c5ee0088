"""`day0 verify`: is a model folder what it should be?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows.output import Answer
from flows.output import command as make_command


@make_command(name="verify")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--manifest",
    "manifest_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help='What the files should be: a sha256sum listing, or {"files": {name: {"size": n, "sha256": hex}}}.',
)
@click.option(
    "--signature",
    "signature_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The release's signature (OpenSSF model signing); by default its model.sig, where it has one.",
)
@click.option(
    "--public-key", metavar="PEM", type=click.Path(path_type=Path), help="The key that it should be signed with."
)
@click.option(
    "--certificate-chain",
    metavar="PEM",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Certificates of the authority that vouches for the signer; may be repeated.",
)
@click.option("--identity", metavar="NAME", help="Who should have signed by Sigstore, such as an e-mail address.")
@click.option("--identity-provider", metavar="URL", help="Who vouches for that identity (an OpenID Connect issuer).")
@click.option(
    "--trust-config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The Sigstore instance's trust configuration; by default the public one's, over the network.",
)
@click.option("--rehash", is_flag=True, help="Read every byte again, whatever was hashed before.")
def command(
    directory: Path, manifest_path: Path | None, rehash: bool, signature_path: Path | None, **trusted: Any
) -> Answer:
    """Check a model folder: sizes, digests, structure, and its signature where it has one.

    Without --manifest, the digests that were recorded at download (by day0, by the publisher in SHA256SUMS, or by
    the hub's own client) are used; if there are none, the report says that contents were not checked.

    A signature's digests are always compared. Who signed is checked when you say whom you trust: a key, a certificate
    chain, or an identity with its provider. Then a release without a signature, and a file that the signature does
    not cover, fail.
    """
    from day0.verdict import exit_code
    from tasks.download.authenticity import Trust
    from tasks.download.manifest import read_manifest, recorded
    from tasks.download.render import show_report
    from tasks.download.signatures import find_signature
    from tasks.download.verify import verify_folder

    if sum(map(bool, (trusted["public_key"], trusted["certificate_chain"], trusted["identity"]))) > 1:
        raise click.UsageError("name one to trust: --public-key, --certificate-chain or --identity")
    if bool(trusted["identity"]) != bool(trusted["identity_provider"]):
        raise click.UsageError("--identity and --identity-provider go together")
    if trusted["trust_config"] and not trusted["identity"]:
        raise click.UsageError("--trust-config goes with --identity")
    signature = find_signature(directory, signature_path, Trust(**trusted))
    manifest = read_manifest(manifest_path) if manifest_path else recorded(directory)
    report = verify_folder(directory, manifest, rehash=rehash, signature=signature)
    data = {
        "verdict": report.verdict,
        "files": report.file_count,
        "bytes": report.bytes,
        "tensors": report.tensors,
        "contents": {"checked_files": report.checked_files, "compared_with": report.digests_from},
        "faults": [fault.to_json() for fault in report.faults],
        "warnings": [fault.to_json() for fault in report.warnings],
        "checks": [check.model_dump(mode="json") for check in report.checks],
    }
    return Answer(data, lambda: show_report(str(directory), report), exit_code(report.verdict))
