"""Whatever can be wrong with a model folder is a fault of the right kind, named to file and tensor."""

from __future__ import annotations

import json
import os
import pickle
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from day0.verdict import Verdict
from tasks.download.pickles import hostile_calls
from tasks.download.verify import VerifyReport, verify_folder
from tests.download.builder import (
    INDEX,
    ONE,
    TWO,
    VECTOR,
    edit_index,
    entry,
    place,
    raw,
    release,
    shard,
    two_shards,
    write,
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))


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
    if not _names_one_shard_whole(index):  # which is a sound checkpoint, beside a file that it does not name
        assert report.verdict is Verdict.FAIL
    for fault in (*report.faults, *report.warnings):
        json.dumps([fault.kind, fault.file, fault.tensor, fault.detail], ensure_ascii=False).encode()


def _names_one_shard_whole(index: object) -> bool:
    named = index.get("weight_map") if isinstance(index, dict) else None
    return named == {"a.weight": ONE, "b.weight": ONE}


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
