"""The header reader: it agrees with the format's own library on sound files, and never crashes on others."""

from __future__ import annotations

import json
import os
import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from day0.safetensors_header import DTYPE_BITS, HeaderFault, examine, parse, read_header
from tests.download.builder import entry, raw, shard

BIG = 2**62
HALF = b'"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}'

#: What is wrong → the file, the fault's kind, the tensor that must be named (None: the file as a whole), words of it.
MALFORMED = {
    "empty": (b"", "header", None, "empty"),
    "five bytes": (b"\x02\0\0\0\0", "header", None, "too few"),
    "length beyond the file": (raw({}, length=1000), "header", None, "ends after"),
    "length 2^63": (raw({}, length=2**63), "header", None, "may have 100,000,000"),
    "length over the cap": (raw({}, length=100_000_001), "header", None, "may have 100,000,000"),
    "length 0": (raw(b"", b"{}", length=0), "header", None, "cannot be JSON"),
    "length cuts the JSON": (raw({"a": entry(0, 1)}, b"x", length=10), "header", None, "not JSON"),
    "not UTF-8": (raw(b'{"\xff": 1}'), "header", None, "UTF-8"),
    "byte order mark": (raw(b"\xef\xbb\xbf{}"), "header", None, "must begin with"),
    "spaces first": (raw(b"  {}"), "header", None, "must begin with"),
    "NULs behind": (raw(b"{}\0\0"), "header", None, "not JSON"),
    "an array": (raw(b"[]"), "header", None, "must begin with"),
    "nested 100000 deep": (raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "header", None, "deeply"),
    "NaN": (raw(b'{"a": NaN}'), "header", None, "NaN"),
    "a number of 5000 digits": (raw(b'{"a": ' + b"9" * 5000 + b"}"), "header", None, "not JSON"),
    "nested 5000 deep": (raw(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"), "header", None, "deeply"),
    "nested 5000 deep, objects": (raw(b'{"a":' * 5000 + b"1" + b"}" * 5000), "header", None, "deeply"),
    "HTML page, spaces first": (b"\n\n <HTML><body>403</body></html>", "header", None, "HTML"),
    "XML error": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "header", None, "XML"),
    "JSON error": (b'{"error":"Repository not found"}', "header", None, "JSON text"),
    "text": (b"Entry not found", "header", None, "'Entry not found'"),
    "short text": (b"x\n", "header", None, "text"),
    "gzip": (b"\x1f\x8b\x08" + bytes(60), "header", None, "gzip"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(60), "header", None, "GGUF"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(60), "header", None, "HDF5"),
    "pickle, protocol 5": (b"\x80\x05\x95\x10" + bytes(60), "header", None, "pickle"),
    "HTML page": (b"<!DOCTYPE html><html>502 Bad Gateway</html>", "header", None, "HTML"),
    "git-LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "header", None, "git-LFS"),
    "zip": (b"PK\x03\x04" + bytes(60), "header", None, "zip"),
    "pickle": (b"\x80\x02}q\x00." + bytes(60), "header", None, "pickle"),
    "truncated": (raw({"a": entry(0, 8)}, bytes(5)), "size", "a", "3 bytes too short"),
    "trailing bytes": (raw({"a": entry(0, 8)}, bytes(9)), "size", None, "1 bytes after"),
    "hole": (raw({"a": entry(0, 4), "b": entry(6, 8)}, bytes(8)), "layout", "b", "no tensor"),
    "full overlap": (raw({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)), "layout", "b", "overlaps"),
    "partial overlap": (raw({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)), "layout", "b", "overlaps"),
    "first offset not 0": (raw({"a": entry(2, 4)}, bytes(4)), "layout", "a", "no tensor"),
    "end before begin": (raw({"a": entry(4, 2, shape=[2])}, bytes(4)), "layout", "a", "order"),
    "negative offset": (raw({"a": entry(-2, 2)}, bytes(4)), "layout", "a", "order"),
    "float offset": (raw({"a": entry(0, 4) | {"data_offsets": [0, 4.0]}}, bytes(4)), "layout", "a", "whole numbers"),
    "bool offset": (raw({"a": entry(0, 1) | {"data_offsets": [False, True]}}, b"x"), "layout", "a", "whole numbers"),
    "offset 2^64": (raw({"a": entry(0, 2**64)}, bytes(4)), "layout", "a", "overflows"),
    "three offsets": (raw({"a": entry(0, 1) | {"data_offsets": [0, 1, 2]}}, b"x"), "layout", "a", "two"),
    "shape and bytes differ": (raw({"a": entry(0, 8, "F32", [3])}, bytes(8)), "layout", "a", "takes 12"),
    "shape overflows": (raw({"a": entry(0, 8, "U8", [BIG, BIG])}, bytes(8)), "layout", "a", "overflows"),
    "zero, then overflow": (raw({"a": entry(0, 0, "U8", [0, BIG, BIG])}), "layout", "a", "overflows"),
    "overflow, then zero": (raw({"a": entry(0, 0, "U8", [BIG, BIG, 0])}), "layout", "a", "overflows"),
    "negative dimension": (raw({"a": entry(0, 4, "U8", [-4])}, bytes(4)), "layout", "a", "negative"),
    "bool dimension": (raw({"a": entry(0, 1) | {"shape": [True]}}, b"x"), "layout", "a", "whole numbers"),
    "unknown dtype": (raw({"a": entry(0, 4, "F99", [4])}, bytes(4)), "dtype", "a", "F99"),
    "lower-case dtype": (raw({"a": entry(0, 4, "u8")}, bytes(4)), "dtype", "a", "u8"),
    "odd number of F4": (raw({"a": entry(0, 2, "F4", [3])}, bytes(2)), "layout", "a", "whole bytes"),
    "name twice, another dtype": (
        raw(b"{" + HALF + b"," + HALF.replace(b"F16", b"BF16") + b"}", b"xx"),
        "duplicate_tensor", "a", "twice",
    ),
    "name twice, another range": (
        raw(b"{" + HALF + b"," + HALF.replace(b"[0,2]", b"[2,4]") + b"}", b"xxxx"),
        "duplicate_tensor", "a", "twice",
    ),
    "name twice, the same": (raw(b"{" + HALF + b"," + HALF + b"}", b"xx"), "duplicate_tensor", "a", "twice"),
    "name twice by escape": (
        raw(b"{" + HALF + b"," + HALF.replace(b'"a"', b'"\\u0061"') + b"}", b"xx"),
        "duplicate_tensor", "a", "twice",
    ),
    "field twice": (
        raw(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        "header", "a", "'dtype' twice",
    ),
    "metadata twice": (raw(b'{"__metadata__":{},"__metadata__":{}}'), "header", None, "twice"),
    "unknown field": (raw({"a": entry(0, 1) | {"extra": 1}}, b"x"), "header", "a", "extra"),
    "missing field": (raw({"a": {"dtype": "U8", "shape": []}}, b"x"), "header", "a", "data_offsets"),
    "entry is no object": (raw({"a": 7}), "header", "a", "object"),
    "metadata holds a number": (raw({"__metadata__": {"x": 1}}), "header", None, "strings"),
    "metadata key twice": (raw(b'{"__metadata__":{"a":"1","a":"2"}}'), "header", None, "'a' twice"),
    "metadata as a tensor": (raw({"__metadata__": entry(0, 1)}, b"x"), "header", None, "strings"),
    "33 dimensions": (raw({"a": entry(0, 1, "U8", [1] * 33)}, b"x"), "layout", "a", "at most 32"),
    "number with a leading zero": (
        raw(b'{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}', b"x"), "header", None, "not JSON",
    ),
    "comma behind the last": (
        raw(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},}', b"x"), "header", None, "not JSON",
    ),
    "two objects": (raw(b"{}{}"), "header", None, "not JSON"),
    "digits of another script": (
        raw('{"a":{"dtype":"U8","shape":[١],"data_offsets":[0,1]}}'.encode(), b"x"), "header", None, "not JSON",
    ),
    "exponent as offset": (
        raw(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1e0]}}', b"x"), "layout", "a", "whole numbers",
    ),
    "metadata is a list": (raw({"__metadata__": []}), "header", None, "strings"),
    "empty name": (raw({"": entry(0, 1)}, b"x"), "name", "", "empty"),
    "NUL in a name": (raw({"a\0b": entry(0, 1)}, b"x"), "name", "a\\x00b", "control"),
    "lone surrogate in a name": (raw(b'{"\\ud800": {}}'), "name", "\\ud800", "surrogate"),
    "name of 513 characters": (raw({"n" * 513: entry(0, 1)}, b"x"), "name", "n" * 80, "513"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case: str, tmp_path: Path) -> None:
    content, kind, tensor, words = MALFORMED[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(HeaderFault) as caught:
        read_header(path)
    assert (caught.value.kind, caught.value.tensor) == (kind, tensor)
    assert words in str(caught.value)


SOUND = {
    "metadata null": raw({"__metadata__": None, "a": entry(0, 1)}, b"x"),
    "header order is not data order": raw({"b": entry(4, 8), "a": entry(0, 4)}, bytes(8)),
    "padded with spaces": raw(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}     ', b"x"),
    "data not aligned": raw(b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}} ', bytes(8)),
    "scalar": shard({"a": ("F32", [], 4)}),
    "empty tensor between": raw({"a": entry(0, 4), "e": entry(4, 4), "b": entry(4, 8)}, bytes(8)),
    "sub-byte dtypes": shard({"a": ("F4", [2], 1), "b": ("F6_E2M3", [4], 3), "c": ("F8_E8M0", [1], 1)}),
    "all that the format knows": shard({d: (d, [8], DTYPE_BITS[d]) for d in DTYPE_BITS}),
    "boolean of 7, NaN": raw({"a": entry(0, 1, "BOOL"), "b": entry(1, 5, "F32", [1])}, b"\x07\xff\xff\xff\xff"),
    "name like a path": shard({"../../x": ("U8", [1], 1)}),
    "no tensors": raw({"__metadata__": {"format": "pt"}}),
    "nothing at all": raw({}),
    "metadata empty": raw({"__metadata__": {}, "a": entry(0, 1)}, b"x"),
    "metadata behind, with braces": raw({"a": entry(0, 1), "__metadata__": {"a": "{}", "b": '"'}}, b"x"),
    "names in other scripts": shard({"層.0.重み": ("U8", [1], 1), "é": ("U8", [2], 2)}),
    "escapes": raw(b'{"\\u0061\\/b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "another order of fields": raw(b'{"a":{"data_offsets":[0,1],"shape":[ 1 ],"dtype":"U8"}}', b"x"),
    "32 dimensions, one of 0": raw({"a": entry(0, 0, "U8", [0] + [1] * 31)}),
    "640 bytes of header, as a pickle begins": raw(b"{}".ljust(640), b""),
}


@pytest.mark.parametrize("case", SOUND)
def test_sound(case: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(SOUND[case])
    header = read_header(path)
    assert sum(t.nbytes for t in header.tensors.values()) == header.file_bytes - header.data_start


def test_all_faults_of_a_header_are_found(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw({"a": entry(0, 1, "F99"), "b": entry(0, 4, "F32", [2]), "\n": entry(0, 1)}, bytes(4)))
    assert [fault.kind for fault in examine(path)[1]] == ["dtype", "layout", "name"]


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(HeaderFault, match="FIFO"):
        read_header(tmp_path / "m.safetensors")


def test_a_folder_or_a_device_is_not_read(tmp_path: Path) -> None:
    for path, what in ((tmp_path, "folder"), (Path("/dev/zero"), "character device")):
        with pytest.raises(HeaderFault, match=what) as caught:
            read_header(path)
        assert caught.value.kind == "not_regular"


def test_both_readers_agree(tmp_path: Path) -> None:
    """The usual spelling, which is read in one go, and the same header spelled otherwise."""
    entries = {f"layers.{i}.w": entry(4 * i, 4 * i + 4, "F32", [1]) for i in range(50)}
    usual, other = json.dumps(entries).encode(), json.dumps(entries, indent=1).encode()
    one, two = (parse(text, 8 + len(text) + 200, "m") for text in (usual, other))
    assert one[1] == two[1] == []
    assert one[0]
    assert two[0]
    shift = two[0].data_start - one[0].data_start
    moved = {n: replace(t, begin=t.begin + shift, end=t.end + shift) for n, t in one[0].tensors.items()}
    assert moved == two[0].tensors


def test_too_many_tensors_are_refused_before_they_are_parsed() -> None:
    header, faults = parse(b"{" + b'"data_offsets"' * 500_001, 10**9, "m")
    assert header is None
    assert "more than 500,000 tensors" in str(faults[0])


# The library writes a tensor of the name `__metadata__`, which no reader can tell from the metadata.
names = st.text(string.ascii_letters + string.digits + "._-/é漢 ", min_size=1, max_size=30).filter(
    "__metadata__".__ne__
)
arrays = st.tuples(
    st.sampled_from([np.float32, np.float16, np.int8, np.uint8, np.int64, np.bool_, np.float64, np.int32]),
    st.lists(st.integers(0, 5), max_size=4),
)
# Of an empty metadata dictionary, safetensors 0.8.0 makes a header that is not JSON.
notes = st.none() | st.dictionaries(names, names, min_size=1, max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=st.dictionaries(names, arrays, max_size=8), metadata=notes)
def test_reads_what_the_formats_library_writes(tensors: dict, metadata: dict | None, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    random = np.random.default_rng(0)
    values = {n: random.integers(0, 2, size=shape).astype(dtype) for n, (dtype, shape) in tensors.items()}
    save_file(values, path, metadata=metadata)
    header = read_header(path)
    content = path.read_bytes()
    with safe_open(path, "np") as theirs:
        assert set(theirs.keys()) == set(header.tensors)
        assert (theirs.metadata() or {}) == header.metadata
    for name, value in values.items():
        mine = header.tensors[name]
        assert mine.shape == value.shape
        assert content[mine.begin : mine.end] == value.tobytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_bytes_raise_nothing_but_header_faults(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(
        raw({"a.weight": entry(0, 8, "F32", [2]), "b": entry(8, 12), "__metadata__": {"k": "v"}}, bytes(12))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "delete", "insert"])):
            case "set":
                content[position] = data.draw(st.integers(0, 255))
            case "delete":
                del content[position]
            case _:
                content[position:position] = data.draw(st.binary(max_size=4))
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    try:
        header = read_header(path)
    except HeaderFault as fault:
        json.dumps([fault.kind, fault.tensor, fault.detail], ensure_ascii=False).encode()
    else:
        with safe_open(path, "np") as theirs:  # what this reader accepts, the format's library accepts
            assert set(theirs.keys()) == set(header.tensors)
