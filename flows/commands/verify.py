"""`day0 verify`: is a model folder what it should be?"""

from __future__ import annotations

from pathlib import Path

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
@click.option("--rehash", is_flag=True, help="Read every byte again, whatever was hashed before.")
def command(directory: Path, manifest_path: Path | None, rehash: bool) -> Answer:
    """Check a model folder: sizes, digests, structure.

    Without --manifest, the digests that were recorded at download (by day0, by the publisher in SHA256SUMS, or by
    the hub's own client) are used; if there are none, the report says that contents were not checked.
    """
    from day0.verdict import exit_code
    from tasks.download.manifest import read_manifest, recorded
    from tasks.download.render import show_report
    from tasks.download.verify import verify_folder

    manifest = read_manifest(manifest_path) if manifest_path else recorded(directory)
    report = verify_folder(directory, manifest, rehash=rehash)
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
