"""Verification against digests and manifests, and the command; what can be wrong in a folder: test_matrix.py."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from day0.checkpoint import open_checkpoint, read_config
from day0.errors import InputError
from day0.release import parse_source
from day0.verdict import Verdict
from flows.cli import cli
from tasks.download.folder import take_folder
from tasks.download.manifest import Expected, Manifest, read_manifest, recorded
from tasks.download.verify import verify_folder
from tests.download.builder import (
    INDEX,
    ONE,
    TWO,
    entry,
    place,
    raw,
    release,
    two_shards,
    write,
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))


def sums(root: Path) -> Manifest:
    files = {p.name: Expected(p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()) for p in root.iterdir()}
    return Manifest(files, "manifest", "the manifest")


def flip(path: Path) -> None:
    """Change the last byte and leave size and mtime as they were."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = two_shards(tmp_path / "m")
    manifest = sums(root)
    readv = os.readv

    def grow(descriptor: int, buffers: list[bytearray]) -> int:
        if os.fstat(descriptor).st_ino == (root / TWO).stat().st_ino:
            with (root / TWO).open("ab") as file:
                file.write(b"x")
        return readv(descriptor, buffers)

    monkeypatch.setattr(os, "readv", grow)
    found = [(fault.kind, fault.file) for fault in verify_folder(root, manifest, rehash=True).faults]
    assert ("incomplete_download", TWO) in found


def test_a_flipped_byte_after_a_passed_verification_is_found(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    manifest = sums(root)
    assert verify_folder(root, manifest).verdict is Verdict.PASS
    flip(root / TWO)
    faults = verify_folder(root, manifest).faults
    assert [(fault.kind, fault.file) for fault in faults] == [("digest", TWO)]
    assert manifest.files[TWO].sha256 in faults[0].detail
    assert hashlib.sha256((root / TWO).read_bytes()).hexdigest() in faults[0].detail


def test_rehash_does_not_trust_what_was_noted(tmp_path: Path) -> None:
    import sqlite3

    root = two_shards(tmp_path / "m")
    manifest = sums(root)
    flip(root / TWO)
    verify_folder(root, manifest)
    with sqlite3.connect(tmp_path / "home" / "hashes.sqlite") as database:  # as if the disk had lost a bit unnoticed
        database.execute("UPDATE hashes SET sha256 = ? WHERE path LIKE ?", [manifest.files[TWO].sha256, f"%{TWO}"])
    assert verify_folder(root, manifest).verdict is Verdict.PASS
    assert verify_folder(root, manifest, rehash=True).verdict is Verdict.FAIL


def test_manifest_against_folder(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    files = dict(sums(root).files)
    files["tokenizer.json"] = Expected(1, "0" * 64)
    files["config.json"] = Expected(99, files["config.json"].sha256)
    files[TWO] = Expected(files[TWO].size)
    del files[ONE], files[INDEX]
    report = verify_folder(root, Manifest(files, "manifest", "the manifest"))
    assert {(fault.kind, fault.file) for fault in report.faults} == {
        ("missing_shard", "tokenizer.json"),
        ("size", "config.json"),
        ("digest", ONE),  # weights that the manifest does not vouch for,
        ("digest", TWO),  # or by their size only
    }
    assert [(warning.kind, warning.file) for warning in report.warnings] == [("digest", INDEX)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "lists no files"),
        ("nonsense", "neither JSON nor a sha256sum listing"),
        ("{}", "must be"),
        ('{"files": {"a": {"sha256": "abc"}}}', "64 hexadecimal digits"),
        ('{"files": {"a": {"size": -1}}}', "whole number"),
        ('{"files": {"a": {"sha512": "x"}}}', "nothing else"),
        (f"{'0' * 64}  ../a\n", "unusable name"),
        (f"{'0' * 64}  a\n{'1' * 64}  a\n", "two digests"),
    ],
)
def test_malformed_manifest(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "sums").write_text(content)
    with pytest.raises(InputError, match=words):
        read_manifest(tmp_path / "sums")


def test_reads_what_sha256sum_writes(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    listing = subprocess.run(["sha256sum", *sorted(os.listdir(root))], cwd=root, capture_output=True, check=True)
    (root / "SHA256SUMS").write_bytes(listing.stdout)
    manifest = recorded(root)
    assert manifest
    report = verify_folder(root, manifest)
    assert (report.verdict, report.checked_files) == (Verdict.PASS, 5)


def test_digests_that_the_hubs_client_noted_are_used(tmp_path: Path) -> None:
    cache = tmp_path / "models--acme--tiny"
    root = cache / "snapshots" / ("0" * 40)
    plain = two_shards(tmp_path / "m")
    (cache / "blobs").mkdir(parents=True)
    root.mkdir(parents=True)
    for name in os.listdir(plain):
        content = (plain / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        (cache / "blobs" / digest).write_bytes(content)
        (root / name).symlink_to(f"../../blobs/{digest}")
    report = verify_folder(root, recorded(root))
    assert (report.verdict, report.digests_from, report.checked_files) == (Verdict.PASS, "hub", 5)
    flip((root / TWO).resolve())
    assert [fault.kind for fault in verify_folder(root, recorded(root)).faults] == ["digest"]


def test_a_folder_is_a_snapshot_that_changes_only_with_its_content(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    first = take_folder(parse_source(f"dir:{root}"))
    assert first == take_folder(parse_source(f"dir:{root}"))
    assert (first.verdict, first.digests_from, first.tensors) == (Verdict.PASS, "none", 4)
    write("modeling.py", "x")(root)
    assert "modeling.py" not in [file.name for file in take_folder(parse_source(f"dir:{root}")).files]
    flip(root / TWO)
    assert take_folder(parse_source(f"dir:{root}")).revision != first.revision


def test_open_checkpoint_names_the_first_fault(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    checkpoint = open_checkpoint(root)
    assert sorted(checkpoint.tensors) == ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert checkpoint.tensor_bytes == 32
    place("ghost", TWO)(root)
    with pytest.raises(InputError, match=f"{TWO}: ghost: the index places it in this file"):
        open_checkpoint(root)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1, "a": 2}', '{"a": NaN}', "\ufeff{}", "[" * 100_000])
def test_malformed_config(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_config_may_hold_infinity(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_config(tmp_path / "config.json")["time_step_limit"] == [0.0, float("inf")]


@pytest.mark.parametrize(
    "source",
    ["", "acme", "ms:acme", "ftp:acme/tiny", "dir:", "dir:/no/such", "../x/y", "hf:acme/tiny@", "a/b@../x"],
)
def test_malformed_source(source: str) -> None:
    with pytest.raises(InputError):
        parse_source(source)


def test_command(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    answer = CliRunner().invoke(cli, ["verify", str(root), "--json"])
    assert answer.exit_code == 0
    data = json.loads(answer.stdout)
    assert (data["verdict"], data["files"], data["faults"]) == ("pass", 5, [])
    (root / TWO).unlink()
    answer = CliRunner().invoke(cli, ["verify", str(root), "--json"])
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["faults"][0]["kind"] == "missing_shard"
    assert CliRunner().invoke(cli, ["verify", str(root / "none")]).exit_code == 2
    assert TWO[:20] in CliRunner().invoke(cli, ["verify", str(root)]).stdout


def test_a_table_for_people_stays_short(tmp_path: Path) -> None:
    tensors = {f"t{n}.weight": ("F8_E4M3", [1], 1) for n in range(1000)}
    root = release(tmp_path / "m", {"model.safetensors": tensors})
    shown = CliRunner().invoke(cli, ["verify", str(root)]).stdout
    assert "and 980 more of kind scale_pair; --json lists all" in shown
    assert len(json.loads(CliRunner().invoke(cli, ["verify", str(root), "--json"]).stdout)["faults"]) == 1000


def test_the_same_content_gives_the_same_report(tmp_path: Path) -> None:
    def break_it(root: Path) -> None:
        write(TWO, raw({"c.weight": entry(0, 4, "F8_E4M3"), "d.weight": entry(4, 6, "F99")}, bytes(6)))(root)
        place("ghost", ONE)(root)
        write("x.incomplete", b"")(root)
        write("a.py", b"")(root)
        write("b.bin", b"")(root)

    one = two_shards(tmp_path / "m")
    break_it(one)
    two = tmp_path / "n"
    two.mkdir()
    for path in sorted(one.iterdir(), reverse=True):
        (two / path.name).write_bytes(path.read_bytes())
    first, second = verify_folder(one, None), verify_folder(two, None)
    assert first == second == verify_folder(one, None)
    assert {fault.kind for fault in first.faults} == {
        "scale_pair", "dtype", "missing_tensor", "incomplete_download",
    }  # fmt: skip


def test_the_command_stays_light(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    code = (
        "import sys; from flows.cli import main\n"
        f"try: main(['verify', {str(root)!r}, '--json'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'prefect', 'huggingface_hub', 'numpy', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'{heavy} were imported' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
