"""Whatever can be wrong with a model folder is a fault of the right kind, named to file and tensor."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from day0.checkpoint import open_checkpoint, read_config
from day0.errors import InputError
from day0.release import parse_source
from day0.verdict import Verdict
from flows.cli import cli
from tasks.download.folder import take_folder
from tasks.download.manifest import Expected, Manifest, read_manifest, recorded
from tasks.download.pickles import hostile_calls
from tasks.download.verify import VerifyReport, verify_folder
from tests.download.builder import entry, raw, release, shard, two_shards

ONE = "model-00001-of-00002.safetensors"
TWO = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
VECTOR = ("BF16", [4], 8)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))


def edit_index(root: Path, change: Callable[[dict], object]) -> None:
    index = json.loads((root / INDEX).read_text())
    change(index)
    (root / INDEX).write_text(json.dumps(index))


def place(tensor: str, file: object) -> Callable[[Path], None]:
    """Let the index place `tensor` in `file`."""
    return lambda root: edit_index(root, lambda index: index["weight_map"].update({tensor: file}))


def write(name: str, content: bytes | str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def link_outside(root: Path) -> None:
    (root.parent / "elsewhere.safetensors").write_bytes((root / TWO).read_bytes())
    (root / TWO).unlink()
    (root / TWO).symlink_to("../elsewhere.safetensors")


def replace_by_fifo(root: Path) -> None:
    (root / TWO).unlink()
    os.mkfifo(root / TWO)


def replace_by_socket(root: Path) -> None:
    (root / TWO).unlink()
    here = os.getcwd()
    os.chdir(root)  # a socket's path may have 107 characters only
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(TWO)
    os.chdir(here)


def replace_by_folder(root: Path) -> None:
    (root / TWO).unlink()
    (root / TWO).mkdir()


def dangle(root: Path) -> None:
    (root / TWO).unlink()
    (root / TWO).symlink_to("gone.safetensors")


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def hostile_archive(root: Path) -> None:
    with zipfile.ZipFile(root / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Hostile(), protocol=2))


#: What was done to a sound release → the fault's kind, file and tensor.
FAULTY: dict[str, tuple[Callable[[Path], object], str, str | None, str | None]] = {
    "shard missing": (lambda r: (r / TWO).unlink(), "missing_shard", TWO, None),
    "link to nothing": (dangle, "missing_shard", TWO, None),
    "index is not JSON": (write(INDEX, "{"), "index", INDEX, None),
    "index has a key twice": (write(INDEX, '{"weight_map": {"a": "x", "a": "y"}}'), "index", INDEX, None),
    "index has no weight_map": (write(INDEX, '{"metadata": {}}'), "index", INDEX, None),
    "weight_map is empty": (write(INDEX, '{"weight_map": {}}'), "index", INDEX, None),
    "weight_map names a number": (place("a.weight", 3), "index", INDEX, "a.weight"),
    "index deleted": (lambda r: (r / INDEX).unlink(), "index", None, None),
    "two other indexes": (
        lambda r: ((r / INDEX).rename(r / "a.safetensors.index.json"), write("b.safetensors.index.json", "{}")(r)),
        "index", None, None,
    ),
    "index lists a ghost": (place("mtp.fc.weight", TWO), "missing_tensor", TWO, "mtp.fc.weight"),
    "index lacks a tensor": (
        lambda r: edit_index(r, lambda i: i["weight_map"].pop("c.weight")), "extra_tensor", TWO, "c.weight",
    ),
    "index places it elsewhere (there)": (place("c.weight", ONE), "extra_tensor", TWO, "c.weight"),
    "index places it elsewhere (here)": (place("c.weight", ONE), "missing_tensor", ONE, "c.weight"),
    "tensor in two shards": (
        write(TWO, shard({"a.weight": VECTOR, "c.weight": VECTOR, "d.weight": VECTOR})),
        "duplicate_tensor", TWO, "a.weight",
    ),
    "parent folder": (place("a.weight", "../x.safetensors"), "unsafe_path", "../x.safetensors", None),
    "absolute path": (place("a.weight", "/etc/x.safetensors"), "unsafe_path", "/etc/x.safetensors", None),
    "NUL in a path": (place("a.weight", "a\0b"), "unsafe_path", "a\\x00b", None),
    "backslash": (place("a.weight", "..\\x.safetensors"), "unsafe_path", "..\\x.safetensors", None),
    "URL": (place("a.weight", "http://x/y.safetensors"), "unsafe_path", "http://x/y.safetensors", None),
    "link outside": (link_outside, "unsafe_path", TWO, None),
    "config links outside": (
        lambda r: ((r / "config.json").unlink(), (r / "config.json").symlink_to("/etc/hostname")),
        "unsafe_path", "config.json", None,
    ),
    "FIFO": (replace_by_fifo, "not_regular", TWO, None),
    "stray FIFO": (lambda r: os.mkfifo(r / "tokenizer.json"), "not_regular", "tokenizer.json", None),
    "socket": (replace_by_socket, "not_regular", TWO, None),
    "folder": (replace_by_folder, "not_regular", TWO, None),
    "half-fetched file": (write(f"{TWO}.incomplete", b"x"), "incomplete_download", f"{TWO}.incomplete", None),
    "truncated": (lambda r: os.truncate(r / TWO, (r / TWO).stat().st_size - 3), "size", TWO, "d.weight"),
    "empty shard": (write(TWO, b""), "header", TWO, None),
    "LFS pointer": (write(TWO, "version https://git-lfs.github.com/spec/v1\n"), "header", TWO, None),
    "unknown dtype": (write(TWO, raw({"c.weight": entry(0, 1, "F99")}, b"x")), "dtype", TWO, "c.weight"),
    "overlap": (
        write(TWO, raw({"c.weight": entry(0, 4), "d.weight": entry(2, 6)}, bytes(6))), "layout", TWO, "d.weight",
    ),
    "name with a newline": (write(TWO, raw({"c\nd": entry(0, 1)}, b"x")), "name", TWO, "c\\nd"),
    "weights in a pickle": (place("a.weight", "pytorch_model.bin"), "unsafe_file", "pytorch_model.bin", "a.weight"),
    "hostile pickle": (write("x.pkl", pickle.dumps(Hostile())), "unsafe_file", "x.pkl", None),
    "hostile archive": (hostile_archive, "unsafe_file", "pytorch_model.bin", None),
    "index is larger than is accepted": (lambda r: os.truncate(r / INDEX, 1 << 30), "index", INDEX, None),
    "index is an array": (write(INDEX, "[]"), "index", INDEX, None),
    "index is not UTF-8": (write(INDEX, b'{"weight_map": {"\xff": "x"}}'), "index", INDEX, None),
    "index nested 5000 deep": (write(INDEX, '{"weight_map":' + "[" * 5000), "index", INDEX, None),
    "index is a FIFO": (lambda r: ((r / INDEX).unlink(), os.mkfifo(r / INDEX)), "not_regular", INDEX, None),
    "index links outside": (
        lambda r: ((r / INDEX).rename(r.parent / "i.json"), (r / INDEX).symlink_to("../i.json")),
        "unsafe_path", INDEX, None,
    ),
    "empty name in the index": (place("", TWO), "name", INDEX, ""),
    "half a surrogate in the index": (
        write(INDEX, '{"weight_map": {"\\ud800": "x.safetensors"}}'), "name", INDEX, "\\ud800",
    ),
    "empty file name": (place("a.weight", ""), "unsafe_path", "", None),
    "a dot in the path": (place("a.weight", "./x.safetensors"), "unsafe_path", "./x.safetensors", None),
    "drive letter": (place("a.weight", "C:x.safetensors"), "unsafe_path", "C:x.safetensors", None),
    "parent folder, deep": (place("a.weight", "x/../../y.safetensors"), "unsafe_path", "x/../../y.safetensors", None),
    "device": (
        lambda r: ((r / TWO).unlink(), (r / TWO).symlink_to("/dev/zero")), "unsafe_path", TWO, None,
    ),
    "loop of links": (lambda r: ((r / TWO).unlink(), (r / TWO).symlink_to(TWO)), "not_regular", TWO, None),
    "folder links outside": (
        lambda r: ((r.parent / "o").mkdir(), (r / "sub").symlink_to("../o"), place("a.weight", "sub/x.safetensors")(r)),
        "missing_shard", "sub/x.safetensors", None,
    ),
    "one shard under two names": (
        lambda r: (os.link(r / ONE, r / "x.safetensors"), place("e.weight", "x.safetensors")(r)),
        "duplicate_tensor", "x.safetensors", "a.weight",
    ),
    "tensor in two shards, in no index": (
        lambda r: [
            (r / file).write_bytes(shard(dict.fromkeys([*names, "ghost"], VECTOR)))
            for file, names in ((ONE, ["a.weight", "b.weight"]), (TWO, ["c.weight", "d.weight"]))
        ],
        "duplicate_tensor", TWO, "ghost",
    ),
    "no tensors": (
        lambda r: ([(r / n).unlink() for n in (ONE, TWO, INDEX)], write("model.safetensors", raw({}))(r)),
        "header", "model.safetensors", None,
    ),
    "HTML page": (write(TWO, "<!DOCTYPE html><html>"), "header", TWO, None),
    "pickle under the name of a shard": (write(TWO, pickle.dumps({"a": [1] * 99})), "header", TWO, None),
    "million tensors": (write(TWO, raw(b"{" + b'"data_offsets"' * 1_000_000)), "header", TWO, None),
    "zeros to the power of many": (
        write(TWO, raw({"c.weight": entry(0, 0, "U8", [0, 2**62, 2**62])})), "layout", TWO, "c.weight",
    ),
    "name twice in a header": (
        write(TWO, raw(b'{"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},' * 2 + b'"d":1}', b"x")),
        "header", TWO, None,
    ),
    "tokenizer never fetched": (
        write("tokenizer.model", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"),
        "incomplete_download", "tokenizer.model", None,
    ),
    "part file": (write("x.part", b""), "incomplete_download", "x.part", None),
    "config is not JSON": (write("config.json", "{"), "index", "config.json", None),
    "no weights": (lambda r: [(r / n).unlink() for n in (ONE, TWO, INDEX)], "missing_shard", None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY)
def test_fault(case: str, tmp_path: Path) -> None:
    break_it, kind, file, tensor = FAULTY[case]
    root = two_shards(tmp_path / "m")
    break_it(root)
    report = verify_folder(root, None)
    assert report.verdict is Verdict.FAIL
    named = [(fault.kind, fault.file, fault.tensor) for fault in report.faults]
    assert (kind, file, tensor) in named


def warn(report: VerifyReport) -> list[tuple[str, str | None]]:
    assert report.verdict is Verdict.PASS, report.faults
    return [(warning.kind, warning.file) for warning in report.warnings if warning.kind != "digest"]


WARNED: dict[str, tuple[Callable[[Path], object], str, str | None]] = {
    "total_size is wrong": (
        lambda r: edit_index(r, lambda i: i.update(metadata={"total_size": 7})), "index", INDEX,
    ),
    "total_size is text": (
        lambda r: edit_index(r, lambda i: i.update(metadata={"total_size": "x"})), "index", INDEX,
    ),
    "total_size is negative": (
        lambda r: edit_index(r, lambda i: i.update(metadata={"total_size": -1})), "index", INDEX,
    ),
    "a second index": (write("fp32.safetensors.index.json", "{}"), "index", "fp32.safetensors.index.json"),
    "all weights in one file, too": (
        write("model.safetensors", shard({"a": VECTOR})), "extra_tensor", "model.safetensors",
    ),
    "another writer's file": (
        lambda r: ((r / "original").mkdir(), write("original/consolidated.safetensors", b"x")(r)),
        "extra_tensor", "original/consolidated.safetensors",
    ),
    "no tokenizer": (lambda r: (r / "tokenizer.model").unlink(), "index", "tokenizer.json"),
    "stray shard": (write("other.safetensors", shard({"a": VECTOR})), "extra_tensor", "other.safetensors"),
    "code": (write("modeling_x.py", "x"), "unsafe_file", "modeling_x.py"),
    "auto_map": (write("config.json", '{"auto_map": {}}'), "unsafe_file", "config.json"),
    "harmless pickle": (write("training_args.bin", pickle.dumps({"lr": 1})), "unsafe_file", "training_args.bin"),
    "no config": (lambda r: (r / "config.json").unlink(), "index", "config.json"),
    "names differ in case": (lambda r: (write("A.txt", "")(r), write("a.txt", "")(r)), "unsafe_path", "a.txt"),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_warning(case: str, tmp_path: Path) -> None:
    do, kind, file = WARNED[case]
    root = two_shards(tmp_path / "m")
    do(root)
    assert (kind, file) in warn(verify_folder(root, None))


def rename(change: Callable[[str], str]) -> Callable[[Path], object]:
    """Rename both shards, in the index too."""

    def do(root: Path) -> None:
        for file in (ONE, TWO):
            (root / change(file)).parent.mkdir(exist_ok=True)
            (root / file).rename(root / change(file))
        edit_index(root, lambda i: i.update(weight_map={t: change(f) for t, f in i["weight_map"].items()}))

    return do


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
places = st.sampled_from([ONE, TWO, "../x", "/x", "", "a\0", "x.bin", ".", "\ud800", "\n.safetensors"]) | anything
maps = st.dictionaries(st.sampled_from(["a.weight", "b.weight", "c.weight", "", "\ud800", "g"]), places)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    index=anything | st.fixed_dictionaries({"weight_map": maps | anything, "metadata": anything}),
    config=anything | st.fixed_dictionaries({"quantization_config": anything, "text_config": anything}),
)
def test_whatever_index_and_config_say_is_a_fault_or_right(index: object, config: object, tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    write(INDEX, json.dumps(index))(root)
    write("config.json", json.dumps(config))(root)
    report = verify_folder(root, None)
    assert report.verdict is Verdict.FAIL  # these name four tensors in two files at no time
    for fault in (*report.faults, *report.warnings):
        json.dumps([fault.kind, fault.file, fault.tensor, fault.detail], ensure_ascii=False).encode()


SOUND: dict[str, Callable[[Path], object]] = {
    "as it is": lambda r: None,
    "index without metadata": lambda r: edit_index(r, lambda i: i.pop("metadata")),
    "index without total_size": lambda r: edit_index(r, lambda i: i.update(metadata={})),
    "index with the right total_size": lambda r: edit_index(r, lambda i: i.update(metadata={"total_size": 32})),
    "unusual names": rename(lambda file: file.replace("model-", "model.safetensors-")),
    "shards in a folder": rename(lambda file: f"weights/{file}"),
    "metadata null": write(TWO, raw({"__metadata__": None, "c.weight": entry(0, 8, "BF16", [4]),
                                     "d.weight": entry(8, 16, "BF16", [4])}, bytes(16))),
    "link within": lambda r: ((r / TWO).rename(r / "blob"), (r / TWO).symlink_to("blob")),
    "hard link": lambda r: os.link(r / TWO, r.parent / "also"),
    "the client's folder": lambda r: ((r / ".cache").mkdir(), write(".cache/x.lock", "")(r)),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_sound(case: str, tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    SOUND[case](root)
    assert warn(verify_folder(root, None)) == []


def test_every_missing_shard_is_named(tmp_path: Path) -> None:
    files = [f"model-{n:05d}-of-00010.safetensors" for n in range(1, 11)]
    root = release(tmp_path / "m", {file: {file[:11]: VECTOR} for file in files})
    for file in files[3:]:
        (root / file).unlink()
    assert [(fault.kind, fault.file) for fault in verify_folder(root, None).faults] == [
        ("missing_shard", file) for file in files[3:]
    ]


def test_a_hub_caches_links_lead_to_its_own_blobs_only(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "models--a--b" / "snapshots" / ("0" * 40))
    (tmp_path / "models--a--b" / "blobs").mkdir()
    (root / TWO).rename(tmp_path / "models--a--b" / "blobs" / "two")
    (root / TWO).symlink_to("../../blobs/two")
    assert verify_folder(root, None).faults == ()
    (tmp_path / "models--a--b" / "blobs" / "two").rename(tmp_path / "models--a--b" / "two")
    (root / TWO).unlink()
    (root / TWO).symlink_to("../../two")
    assert [(fault.kind, fault.file) for fault in verify_folder(root, None).faults] == [("unsafe_path", TWO)]


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_pickles_and_archives_are_listed_and_never_raise(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w", data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": list(range(50))}, protocol=2))
    content = bytearray(path.read_bytes() if data.draw(st.booleans()) else pickle.dumps(Hostile()))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    hostile_calls(path)


def test_sparse_shard_is_noticed(tmp_path: Path) -> None:
    root = release(tmp_path / "m", {"model.safetensors": {"a": VECTOR}})
    with (root / "model.safetensors").open("wb") as file:
        file.write(raw({"a": entry(0, 1 << 20)}))
        file.truncate(file.tell() + (1 << 20))
    assert ("size", "model.safetensors") in warn(verify_folder(root, None))


def test_fewer_shards_than_their_names_say(tmp_path: Path) -> None:
    root = release(tmp_path / "m", {"model-00001-of-00003.safetensors": {"a": VECTOR}})
    assert ("missing_shard", None) in warn(verify_folder(root, None))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("<!DOCTYPE html>", "HTML"),
        ("version https://git-lfs.github.com/spec/v1\n", "git-LFS"),
        (b"\x1f\x8b\xff", "gzip"),
    ],
)
def test_an_index_or_a_config_that_is_something_else(content: bytes | str, what: str, tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    for file in (INDEX, "config.json"):
        write(file, content)(root)
    details = [fault.detail for fault in verify_folder(root, None).faults if fault.kind == "index"]
    assert len(details) == 2
    assert all(what in detail for detail in details)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    root = two_shards(tmp_path / "m")
    (root / ONE).unlink()
    write(TWO, raw({"c.weight": entry(0, 1, "F99"), "d.weight": entry(1, 3, "U8", [5])}, bytes(3)))(root)
    write("x.incomplete", b"")(root)
    kinds = {fault.kind for fault in verify_folder(root, None).faults}
    assert kinds == {"missing_shard", "dtype", "layout", "incomplete_download"}


def test_without_digests_nothing_is_claimed_about_contents(tmp_path: Path) -> None:
    report = verify_folder(two_shards(tmp_path / "m"), None)
    digests = next(check for check in report.checks if check.name == "digests")
    assert digests.verdict is Verdict.SKIPPED
    assert "not checked" in digests.reason
    assert report.verdict is Verdict.PASS


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
