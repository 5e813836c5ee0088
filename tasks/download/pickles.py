"""What a pickle would call when loaded, told from its opcodes. Nothing is loaded."""

from __future__ import annotations

import lzma
import pickletools
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MAX_PICKLE_BYTES = 64 << 20  # of a checkpoint's data.pkl, which describes tensors and does not hold them

#: Modules that a pickle of weights has no business with. Not a proof of safety: day0 loads no pickle whatever.
_HOSTILE_MODULES = {
    "asyncio", "bdb", "code", "codeop", "commands", "ctypes", "http", "httplib", "importlib", "marshal", "nt",
    "os", "pdb", "pickle", "pip", "platform", "posix", "profile", "pty", "pydoc", "requests", "runpy", "shutil",
    "socket", "ssl", "subprocess", "sys", "tempfile", "timeit", "urllib", "webbrowser",
}  # fmt: skip
_HOSTILE_BUILTINS = {"eval", "exec", "compile", "open", "getattr", "setattr", "__import__", "breakpoint", "input"}
#: What zipfile and its decompressors raise on archives that are none.
_UNREADABLE = (
    zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError, OSError, zlib.error, lzma.LZMAError,
)  # fmt: skip
_BUILTIN_MODULES = {"builtins", "__builtin__", "__builtins__"}


def hostile_calls(path: Path) -> list[str]:
    """Names such as `os.system` that the pickle (or those in the zip archive) refers to; empty for anything else."""
    found: list[str] = []
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            try:
                with zipfile.ZipFile(file) as archive:
                    for member in archive.infolist():
                        if member.filename.endswith(".pkl") and not member.flag_bits & 1:
                            with archive.open(member) as data:
                                found.extend(_hostile(data))
            except _UNREADABLE:
                pass  # an archive that cannot be read cannot be loaded either
        else:
            file.seek(0)
            found.extend(_hostile(file))
    return sorted(set(found))


def _hostile(file: IO[bytes]) -> list[str]:
    return [f"{module}.{name}" for module, name in _globals(file.read(MAX_PICKLE_BYTES)) if _is_hostile(module, name)]


def _is_hostile(module: str, name: str) -> bool:
    if module in _BUILTIN_MODULES:
        return name.partition(".")[0] in _HOSTILE_BUILTINS
    return module.partition(".")[0] in _HOSTILE_MODULES


def _globals(data: bytes) -> Iterator[tuple[str, str]]:
    """Module and name of every global, as far as the opcodes can be read (execution starts before the end does)."""
    strings: list[str] = []
    memo: dict[int, str] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in ("GLOBAL", "INST"):
                module, _, name = str(argument).partition(" ")
                yield module, name
            elif opcode.name == "STACK_GLOBAL":
                if len(strings) >= 2:
                    yield strings[-2], strings[-1]
            elif isinstance(argument, str):
                strings.append(argument)
            elif opcode.name == "MEMOIZE" and strings:
                memo[len(memo)] = strings[-1]
            elif opcode.name in ("BINGET", "LONG_BINGET") and isinstance(argument, int) and argument in memo:
                strings.append(memo[argument])
    except (ValueError, IndexError, UnicodeDecodeError):
        return  # not a pickle, or cut off
