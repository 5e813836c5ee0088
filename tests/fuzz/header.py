"""Fuzzing of the header reader: it never crashes, and what it accepts is sound and readable by others.

    python -m tests.fuzz.header [--seconds N | --runs N] [--keep]

Guided by coverage where atheris is installed (the extra `dev` has it for Linux on x86-64); otherwise the same inputs
are changed at random. It starts from every case of tests/download/test_header.py and from corpus/header. `--keep`
reduces what was found to the smallest set with the same coverage and puts it into corpus/header.

An input's first byte chooses how the rest becomes a file: even, as it is; odd, the next byte is the number of zero
bytes of data behind it, and the length before it is right, so that most inputs get past the frame.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors

CORPUS = Path(__file__).parent / "corpus" / "header"
MAX_INPUT = 4096
#: For one input; a header this small takes well under a millisecond.
MAX_SECONDS, MAX_MEGABYTES = 5, 1024

TOKENS = (
    '"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"F32"', '"BF16"', '"F4"', '"F6_E2M3"', '"F8_E8M0"',
    '"U8"', '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', '[0,0]', '[0,1]', '[]', '{}', ':', ',', 'null',
    'true', '1e9', '-1', '0', '18446744073709551616', '9223372036854775807', '4611686018427387904',
    '\\u0061', '\\ud800', '\\"',
)  # fmt: skip


def as_file(data: bytes) -> bytes:
    """The file that an input stands for."""
    if len(data) < 2 or data[0] % 2 == 0:
        return data[1:]
    return (len(data) - 2).to_bytes(8, "little") + data[2:] + bytes(data[1])


def as_input(file: bytes) -> bytes:
    """An input that stands for `file`."""
    return b"\0" + file


def check(data: bytes) -> bool:
    """Whether the file is accepted; raises AssertionError where the reader is wrong about it."""
    from day0.safetensors_header import DTYPE_BITS, HeaderFault, header_length, parse

    file = as_file(data)
    try:
        length = header_length(file[:64], len(file))
    except HeaderFault as fault:
        shown(fault)
        return False
    text = file[8 : 8 + length]
    header, faults = parse(text, len(file), "m")
    assert header or faults
    for fault in faults:
        shown(fault)
    if faults or header is None:
        return False

    safetensors.deserialize(file)  # what this reader accepts, the format's library accepts
    entries = json.loads(text, object_pairs_hook=unique)
    entries.pop("__metadata__", None)
    tensors = header.tensors
    assert tensors.keys() == entries.keys()
    reached = header.data_start
    for name, tensor in tensors.items():
        entry = entries[name]
        shift = header.data_start
        assert [tensor.name, tensor.dtype, list(tensor.shape)] == [name, entry["dtype"], entry["shape"]]
        assert [tensor.begin - shift, tensor.end - shift] == entry["data_offsets"]
        assert tensor.begin == reached, "the tensors must cover the data exactly, in order"
        assert tensor.nbytes * 8 == math.prod(tensor.shape) * DTYPE_BITS[tensor.dtype]
        reached = tensor.end
    assert reached == len(file) == header.file_bytes
    return True


def shown(fault: Any) -> None:
    """A fault can be shown and written as JSON, whatever was in the file."""
    json.dumps([fault.kind, fault.tensor, fault.detail], ensure_ascii=False).encode()
    assert fault.detail


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    assert len(value) == len(pairs), "equal keys were accepted"
    return value


def seeds() -> Iterator[bytes]:
    """Inputs to start from: the cases of the tests, and what earlier runs have kept."""
    from tests.download.test_header import MALFORMED, SOUND

    for file in [*(content for content, *_ in MALFORMED.values()), *SOUND.values()]:
        if len(file) <= MAX_INPUT:
            yield as_input(file)
            yield b"\1" + bytes([min(len(file), 255)]) + file[8:]
    for path in sorted(CORPUS.iterdir()):
        yield path.read_bytes()


def guided(arguments: list[str]) -> None:
    """Run libFuzzer in this process, which it ends; `arguments` are its own, from the name of the program on."""
    import atheris

    with atheris.instrument_imports(include=["day0.safetensors_header", "day0.strict_json", "day0.disguise"]):
        import day0.safetensors_header
        import day0.strict_json  # noqa: F401

    atheris.Setup(arguments, check)
    atheris.Fuzz()


def unguided(seconds: float, runs: int) -> int:
    """Change the seeds at random; returns how many inputs were tried."""
    choose = random.Random(0)
    known = list(seeds())
    until = time.monotonic() + seconds
    tried = 0
    while tried < runs and time.monotonic() < until:
        data = bytearray(choose.choice(known))
        for _ in range(choose.randint(1, 4)):
            position = choose.randrange(len(data) + 1)
            match choose.randrange(4):
                case 0:
                    data[position:position] = choose.choice(TOKENS).encode()
                case 1:
                    del data[position : position + choose.randint(1, 8)]
                case 2:
                    data[position : position + 1] = bytes([choose.randrange(256)])
                case _:
                    other = choose.choice(known)
                    begin = choose.randrange(len(other) + 1)
                    data[position:position] = other[begin : begin + choose.randint(1, 40)]
        try:
            check(bytes(data[:MAX_INPUT]))
        except BaseException:
            print(f"the input was {bytes(data)!r}", file=sys.stderr)
            raise
        tried += 1
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.header", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--runs", type=int, default=10**12)
    parser.add_argument("--keep", action="store_true", help="put what was found into corpus/header")
    args = parser.parse_args()
    for data in seeds():
        check(data)
    if importlib.util.find_spec("atheris") is None:
        print(f"{unguided(args.seconds, args.runs):,} inputs, not guided by coverage: atheris is not installed")
        return
    with tempfile.TemporaryDirectory(prefix="day0-fuzz-") as scratch:
        found, least = Path(scratch) / "found", Path(scratch) / "least"
        found.mkdir()
        least.mkdir()
        for data in seeds():
            (found / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        words = Path(scratch) / "words"
        words.write_text("".join(json.dumps(token) + "\n" for token in TOKENS if "\\" not in token))
        fuzz = Path(scratch) / "fuzz"  # libFuzzer starts its program again for each part of a merge
        fuzz.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tests.fuzz.header --libfuzzer "$0" "$@"\n')
        fuzz.chmod(0o700)
        run(
            fuzz, f"-max_total_time={args.seconds}", f"-runs={args.runs}", f"-dict={words}", f"-max_len={MAX_INPUT}",
            f"-timeout={MAX_SECONDS}", f"-rss_limit_mb={MAX_MEGABYTES}", f"-artifact_prefix={Path.cwd()}/fuzz-",
            "-print_final_stats=1", found,
        )  # fmt: skip
        if args.keep:
            run(fuzz, "-merge=1", f"-max_len={MAX_INPUT}", least, found)
            for path in CORPUS.iterdir():
                path.unlink()
            for path in least.iterdir():
                (CORPUS / path.name[:16]).write_bytes(path.read_bytes())


def run(*command: str | Path) -> None:
    if code := subprocess.run(command).returncode:
        sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--libfuzzer"]:
        guided(sys.argv[2:])
    main()
