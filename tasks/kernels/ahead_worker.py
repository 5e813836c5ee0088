"""Compiles what a Triton kernel's AHEAD lists, without a device. Run as a program of its own:

    python ahead_worker.py MODULE ARCHITECTURE OUTPUT

It is copied to where kernels are compiled, so it imports nothing of day0. In OUTPUT it leaves the binaries and
`functions.json`, which says what each takes of the device. Faults are printed as compilers do: `FILE:LINE: error: …`.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: What is kept of the compiler's products: the binary, and its assembly for people.
KEPT = {"cuda": ("cubin", "ptx"), "hip": ("hsaco", "amdgcn")}
KEYS = frozenset({"function", "signature", "config", "divisible", "name"})
#: Of the compiler's metadata, what names paths of the machine or says what the key says.
DROPPED = frozenset({"hash", "extern_libs", "target", "triton_version"})
#: An error of ptxas, LLVM or MLIR.
ERROR = re.compile(r"\berror\s*: (.+)$")
#: Of NVIDIA's and AMD's GPUs alike.
MOST_THREADS = 1024
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


class Fault(Exception):
    """What is wrong with the kernel, and where."""

    def __init__(self, what: str, line: int = 1) -> None:
        super().__init__(what)
        self.line = line


def main(module: str, architecture: str, output: str) -> int:
    try:
        made = compile_all(load(module), architecture, Path(output))
    except Fault as fault:
        print(f"{module}:{fault.line}: error: {' '.join(str(fault).split())}")
        return 1
    Path(output, "functions.json").write_text(json.dumps(made, indent=2, sort_keys=True) + "\n")
    return 0


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise Fault(f"SyntaxError: {error.msg}", error.lineno or 1) from error
    except (Exception, SystemExit) as error:
        raise Fault(f"cannot be imported: {type(error).__name__}: {error}", line_of(error, path)) from error
    return module


def line_of(error: BaseException, path: str) -> int:
    """The last line of the file that the error passed through."""
    lines = [1]
    trace = error.__traceback__
    while trace:
        if Path(trace.tb_frame.f_code.co_filename).name == Path(path).name:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines[-1]


def compile_all(module: Any, architecture: str, output: Path) -> list[dict[str, Any]]:
    """One record for each entry of AHEAD: name, files, registers, spills, shared memory, Triton's metadata."""
    entries = getattr(module, "AHEAD", None)
    if callable(entries):
        try:
            entries = entries(architecture)
        except Exception as error:
            what = f"AHEAD({architecture!r}) raises {type(error).__name__}: {error}"
            raise Fault(what, line_of(error, module.__file__)) from error
    if not isinstance(entries, list) or not entries:
        raise Fault(f"AHEAD lists nothing to compile for {architecture}: it is a list, or a function that returns one")
    made: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or "function" not in entry or not isinstance(entry.get("signature"), dict):
            raise Fault(f"AHEAD[{number}] is no dict with function and signature")
        if unknown := entry.keys() - KEYS:
            raise Fault(f"AHEAD[{number}]: unknown key {min(unknown)!r}; there are {', '.join(sorted(KEYS))}")
        name = entry.get("name") or f"{getattr(entry['function'], '__name__', 'function')}-{number}"
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in made:
            raise Fault(f"AHEAD[{number}]: the name {name!r} is no file name, or is given twice")
        print(f"compiling {name} for {architecture}", flush=True)
        made[name] = compile_one(module, entry, name, architecture, output)
    return list(made.values())


def compile_one(module: Any, entry: dict[str, Any], name: str, architecture: str, output: Path) -> dict[str, Any]:
    import triton
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    function = entry["function"]
    if not isinstance(function, JITFunction):
        raise Fault(f"{name}: function is no @triton.jit function")
    start = first_line(function)
    config = dict(entry.get("config", {}))
    signature = {argument: str(kind) for argument, kind in entry["signature"].items()}
    constants = {argument: value for argument, value in config.items() if argument in function.arg_names}
    options = {option: value for option, value in config.items() if option not in constants}
    target = target_of(architecture)
    backend = triton.compiler.make_backend(target)
    known = vars(backend.parse_options({}))
    if wrong := next((argument for argument in signature if argument not in function.arg_names), None):
        raise Fault(f"{name}: signature names {wrong!r}, which is no argument of {function.__name__}", start)
    if wrong := next((argument for argument in function.arg_names if argument not in {*signature, *constants}), None):
        raise Fault(f"{name}: neither signature nor config gives the argument {wrong!r}", start)
    if wrong := next((option for option in options if option not in known), None):
        raise Fault(f"{name}: {wrong!r} is neither an argument nor an option of Triton for {architecture}", start)
    if wrong := next((argument for argument in entry.get("divisible", ()) if argument not in signature), None):
        raise Fault(f"{name}: divisible names {wrong!r}, which is not in the signature", start)
    attributes = {}
    for place, argument in enumerate(function.arg_names):
        # As the launcher finds them: addresses and numbers that 16 divides; for AMD, tensors within 2 GiB.
        letters = "D" if argument in entry.get("divisible", ()) else ""
        letters += "S" if target.backend == "hip" and signature.get(argument, "").startswith("*") else ""
        if letters and argument not in constants:
            attributes[(place,)] = backend.parse_attr(letters)
    signature = {n: "constexpr" if n in constants else signature[n] for n in function.arg_names}
    log = io.StringIO()
    said: list[str] = []
    try:
        with contextlib.redirect_stdout(log), stderr_into(said):
            source = ASTSource(function, signature, constants, attributes)
            compiled = triton.compile(source, target=target, options=options)
    except Exception as error:
        raise explained(error, said, name, module, start) from error
    # LLVM tells of some errors and goes on.
    if found := first_error(said):
        raise Fault(f"{name}: {found}", start)
    if (threads := compiled.metadata.num_warps * target.warp_size) > MOST_THREADS:
        raise Fault(f"{name}: {threads} threads in a block, of which there may be {MOST_THREADS}", start)
    return record(compiled, name, target.backend, log.getvalue(), output)


@contextlib.contextmanager
def stderr_into(lines: list[str]) -> Iterator[None]:
    """Gather what is written to standard error, by libraries too."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def first_error(lines: list[str]) -> str | None:
    return next((match[1] for line in lines if (match := ERROR.search(line))), None)


def first_line(function: Any) -> int:
    """The line of a function's `def`; Triton counts from its first decorator."""
    before = next(place for place, line in enumerate(function.raw_src) if line.lstrip().startswith("def "))
    return int(function.starting_line_number + before)


def target_of(architecture: str) -> Any:
    from triton.backends.compiler import GPUTarget

    if architecture.startswith("sm_"):
        return GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    return GPUTarget("hip", architecture, 64 if architecture.startswith("gfx9") else 32)


def explained(error: BaseException, said: list[str], name: str, module: Any, start: int) -> Fault:
    """The compiler's error, with the line of the module that it is about where Triton tells it."""
    from triton.compiler.errors import CompilationError

    innermost = error
    while isinstance(innermost.__cause__, CompilationError):  # a function that the kernel calls
        innermost = innermost.__cause__
    if isinstance(innermost, CompilationError) and innermost.src and hasattr(innermost.node, "lineno"):
        starts = {f.src: first_line(f) for f in vars(module).values() if hasattr(f, "starting_line_number")}
        within = innermost.node.lineno
        what = innermost.error_message or innermost.src.splitlines()[within - 1].strip()
        return Fault(f"{name}: {what}", starts.get(innermost.src, start) + within - 1)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["it gives no reason"]
    own = [line for line in lines if line.startswith("ptxas")]  # below Triton's sentence that there was one
    return Fault(f"{name}: {type(error).__name__}: {first_error([*own, *said, *lines]) or lines[0]}", start)


def record(compiled: Any, name: str, backend: str, log: str, output: Path) -> dict[str, Any]:
    files = []
    for kind in KEPT[backend]:
        content = compiled.asm[kind]
        path = output / f"{name}.{kind}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        files.append(path.name)
    metadata = {key: value for key, value in compiled.metadata._asdict().items() if key not in DROPPED}
    if backend == "cuda":
        registers, spilled = number(r"Used (\d+) registers", log), number(r"(\d+) bytes spill stores", log)
        spills = None if spilled is None else spilled // 4
    else:
        text = compiled.asm["amdgcn"]
        registers, spills = number(r"\.vgpr_count:\s+(\d+)", text), number(r"\.vgpr_spill_count:\s+(\d+)", text)
    return {
        "name": name,
        "files": files,
        "registers": registers,
        "spills": spills,
        "shared": metadata["shared"],
        "metadata": json.loads(json.dumps(metadata, default=str)),
    }


def number(pattern: str, text: str) -> int | None:
    """The largest number that the pattern finds: a function's own, whatever the functions that it calls take."""
    return max((int(found) for found in re.findall(pattern, text)), default=None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
