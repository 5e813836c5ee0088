"""Write the recipe's folder, and read every file back as its user would."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from day0 import process
from day0.artifacts.recipe import Recipe
from day0.files import atomic_write, file_ref, write_json
from day0.verdict import Check, Verdict
from tasks.recipe import launch
from tasks.recipe.evidence import Evidence, completeness, rows
from tasks.recipe.report import render_readme, render_report
from tasks.recipe.settings import RecipeSettings

REPORT = "report.html"


def write_recipe(
    evidence: Evidence,
    folder: Path,
    settings: RecipeSettings,
    *,
    benchmark_records: Path | None = None,
    kernels: Path | None = None,
) -> Recipe:
    """Fill `folder`. Its verdict is `pass` only if every file reads back well and every stage is good.

    `kernels` is the tree of the kernels that the engine was given; they are copied.
    """
    spec = evidence.launch
    texts = {
        "launch.sh": launch.launch_script(spec, settings.port),
        "compose.yaml": launch.compose_file(spec, settings.port),
        "kubernetes.yaml": launch.kubernetes_manifests(spec, settings.port),
        "engine-args.yaml": launch.engine_arguments(spec),
    }
    for name, text in texts.items():
        _write(folder / name, text)
    (folder / "launch.sh").chmod(0o755)
    write_json(folder / "hashes.json", hashes(evidence))
    write_json(folder / "evidence.json", evidence_document(evidence))
    names = [*texts, "hashes.json", "evidence.json"]
    _write(folder / REPORT, render_report(evidence, names, benchmark_records))
    _write(folder / "README.md", render_readme(evidence, [*names, REPORT]))
    names = sorted([*names, REPORT, "README.md", *_copied_kernels(evidence, kernels, folder)])
    return Recipe(
        checks=(
            completeness(evidence),
            _shell_check(folder / "launch.sh"),
            *(_yaml_check(folder / name) for name in texts if name.endswith(".yaml")),
        ),
        files=tuple(file_ref(folder, name) for name in names),
        model=evidence.snapshot.name,
        revision=evidence.snapshot.revision,
        target=evidence.plan.target,
        rung=evidence.rung.value,
        report=REPORT,
    )


def hashes(evidence: Evidence) -> dict[str, Any]:
    """SHA-256 of everything that was used, and the digests of the artifacts."""
    spec = evidence.launch
    return {
        "source": evidence.snapshot.source,
        "revision": evidence.snapshot.revision,
        "snapshot": [ref.model_dump() for ref in evidence.snapshot.files],
        "shards": [ref.model_dump() for ref in evidence.shards.files],
        "engine": {
            "name": spec.engine,
            "version": spec.engine_version,
            "environment_made_from": spec.lock_digest,
            "image": spec.environment if spec.runtime == "docker" else None,
        },
        "artifacts": {name: a.digest if a else None for name, a in evidence.stages().items()},
    }


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """The evidence table as data, with what the next rung lacks."""
    next_rung, lacking = evidence.next_rung()
    return {
        "model": evidence.snapshot.name,
        "revision": evidence.snapshot.revision,
        "target": evidence.plan.target,
        "rung": evidence.rung.value,
        "next_rung": next_rung.value if next_rung else None,
        "lacking": lacking,
        "stages": [row.to_json() for row in rows(evidence)],
    }


def _copied_kernels(evidence: Evidence, tree: Path | None, folder: Path) -> list[str]:
    """Copy the files of the kernels that the engine has used to the end, readable for a container's user."""
    if tree is None or evidence.launch.kernels is None:
        return []
    out = {kernel.name for kernel in evidence.kernels.plugin.kernels} if evidence.kernels.plugin else set()
    out -= {kernel.name for kernel in evidence.launch.given}
    copied = []
    for ref in evidence.kernels.files:
        if Path(ref.name).parent.name in out:
            continue
        place = folder / launch.KERNELS / ref.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / ref.name, place)
        copied.append(str(place.relative_to(folder)))
    for path in (folder / launch.KERNELS, *(folder / launch.KERNELS).rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copied


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


def _shell_check(path: Path) -> Check:
    """`sh -n`: the script is read, not run."""
    try:
        process.run(["sh", "-n", str(path)])
    except process.ProcessFailed as error:
        return Check(name=path.name, verdict=Verdict.FAIL, reason=f"{path.name} is no valid shell script: {error}")
    return Check(name=path.name, verdict=Verdict.PASS, reason="sh -n reads it")


def _yaml_check(path: Path) -> Check:
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]
    except yaml.YAMLError as error:
        return Check(name=path.name, verdict=Verdict.FAIL, reason=f"{path.name} is no valid YAML: {error}")
    if not documents:
        return Check(name=path.name, verdict=Verdict.FAIL, reason=f"{path.name} is empty")
    return Check(
        name=path.name,
        verdict=Verdict.PASS,
        reason=f"it reads back as YAML ({len(documents)} document{'s' * (len(documents) > 1)})",
    )
