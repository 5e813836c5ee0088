"""The hub's client in a process of its own: `python -m tasks.kernels.providers.hub_worker REQUEST ANSWER`.

It imports torch to tell which build is for this machine. It downloads and runs nothing of what it downloads.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from day0.files import write_json
from tasks.kernels.acceptance.faults import brief
from tasks.kernels.providers.hub import TRUSTED, Answer, Request

# By name, since the project's own folder of kernels stands in the client's place for tools that read this file.
client: Any = importlib.import_module("kernels")
_digests: Any = importlib.import_module("kernels._rust")
_variants: Any = importlib.import_module("kernels.variants")


def main() -> None:
    request = Request.model_validate_json(Path(sys.argv[1]).read_bytes())
    write_json(Path(sys.argv[2]), answer(request).to_json())


def answer(request: Request) -> Answer:
    """Fetch the build for this machine, and check its files against the digest that its metadata has.

    The client raises what its server, its caches and the repository make it raise; all of it is the reason why the
    kernel cannot be tried.
    """
    try:
        if request.folder is not None:
            return _checked(None, _local_variant(Path(request.folder)))
        commit = request.revision or _commit_of(request.repository, request.version)
        trust = list(request.trusted)
        if not client.has_kernel(request.repository, revision=commit, trust_remote_code=trust):
            return Answer(commit=commit, fault=_no_build(request.repository, commit))
        return _checked(commit, client.install_kernel(request.repository, revision=commit, trust_remote_code=trust))
    except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
        if "trust_remote_code" in str(error):
            said = str(error).partition(". ")[0]
            return Answer(fault=f"{said}; where you trust it, set {TRUSTED}={request.repository}")
        return Answer(fault=brief(error))


def _checked(commit: str | None, variant: Path) -> Answer:
    metadata = client.Metadata.read_from_file(variant / "metadata.json")
    if metadata.digest is not None:
        try:
            metadata.digest.validate(_digests.Digest.hash_variant(metadata.digest.algorithm, variant))
        except _digests.DigestValidationError as error:
            return Answer(commit=commit, fault=f"{variant.name}: {brief(error)}")
    return Answer(commit=commit, variant=variant.name, folder=str(variant.parent.parent))


def _commit_of(repository: str, version: int | None) -> str:
    branches = HfApi().list_repo_refs(repository, repo_type="kernel").branches
    found = next((branch.target_commit for branch in branches if branch.name == f"v{version}"), None)
    if found is None:
        raise ValueError(f"there is no version {version}; branches: {', '.join(b.name for b in branches) or 'none'}")
    return found


def _no_build(repository: str, commit: str) -> str:
    decided = client.get_kernel_variants(repository, revision=commit)
    fitting = [d.variant.variant_str for d in decided if isinstance(d, client.VariantAccepted)]
    if fitting:
        return f"the build {fitting[0]} is not for this device's architecture"
    return f"none of its builds is for this machine: {', '.join(d.variant.variant_str for d in decided) or 'none'}"


def _local_variant(folder: Path) -> Path:
    variant, _ = _variants.resolve_variant(_variants.get_variants_local(folder / "build"))
    if variant is None:
        raise ValueError(f"{folder / 'build'} has no build for this machine")
    return Path(folder, "build", str(variant.variant_str))


if __name__ == "__main__":
    main()
