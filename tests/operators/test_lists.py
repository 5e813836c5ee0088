"""Operator lists: what the parsers read, what they refuse, and refreshing one."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from day0.config import load_config
from day0.errors import InputError, Unavailable
from day0.home import PROJECT
from day0.target import load_target
from day0.target_operators import TargetOperators
from flows.cli import cli
from tasks.operators.lists import document as document_module
from tasks.operators.lists.document import MOST_BYTES, Document, read_document
from tasks.operators.lists.model import Entry, list_names, load_list, read_list, write_list
from tasks.operators.lists.parsers import PARSERS, parse
from tasks.operators.lists.refresh import fetch, refresh, remade
from tasks.operators.settings import operator_settings

TORCH = """
- func: add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
  structured_delegate: add.out
  dispatch:
    SparseCPU, SparseCUDA: add_sparse
- func: add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)
  structured: True
  ufunc_inner_loop:
    Generic: add (AllAndComplex, BFloat16, Half, ComplexHalf)
  dispatch:
    SparseCPU: add_out_sparse_cpu
    MPS: add_out_mps
- func: mm(Tensor self, Tensor mat2) -> Tensor
  structured_delegate: mm.out
  dispatch:
    SparseCPU: _sparse_mm
- func: mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU: mm_out_cpu
    CUDA: mm_out_cuda
- func: histc(Tensor self) -> Tensor
  dispatch:
    CPU, CUDA: histogram_histc
- func: copy(Tensor self, Tensor src) -> Tensor
  dispatch:
    CompositeExplicitAutogradNonFunctional: copy
- func: matmul(Tensor self, Tensor other) -> Tensor
"""

#: Of every parser a file in small, with options, and what is read of it.
SMALL: dict[str, tuple[str, dict[str, str], dict[str, Entry]]] = {
    "torch": (
        TORCH,
        {"key": "CUDA"},
        {
            "aten::add.Tensor": Entry(via="aten::add.out"),
            "aten::add.out": Entry(),
            "aten::mm": Entry(via="aten::mm.out"),
            "aten::mm.out": Entry(),
            "aten::histc": Entry(),
        },
    ),
    "op-plugin": (
        """
all_version: [v2.1, v2.12, v2.13]
official:
  - func: mm(Tensor self, Tensor mat2) -> Tensor
    acl_op: all_version
  - func: bmm(Tensor self, Tensor mat2) -> Tensor
    op_api: [v2.1, newest]
  - func: isin.Tensor_Tensor(Tensor elements, Tensor test_elements) -> Tensor
    op_api: v2.12, v2.13
  - func: cat.names(Tensor[] tensors, Dimname dim) -> Tensor
    acl_op: [v2.1, v2.12]
  - func: sdpa(Tensor q) -> Tensor
    op_api: v2.1
  - func: sdpa(Tensor q) -> Tensor
    op_api: [v2.12, newest]
symint:
  - func: embedding(Tensor weight, Tensor indices) -> Tensor
    op_api: all_version
  - func: npu_gather_backward(Tensor grad) -> Tensor
    op_api: all_version
custom:
  - func: _dropout_with_byte_mask(Tensor self) -> Tensor
    acl_op: all_version
""",
        {},
        {
            "aten::mm": Entry(),
            "aten::bmm": Entry(),
            "aten::isin.Tensor_Tensor": Entry(),
            "aten::cat.names": Entry(status="unknown", note="for torch v2.1 to v2.12 only"),
            "aten::sdpa": Entry(),
            "aten::embedding": Entry(),
            "npu::npu_gather_backward": Entry(),
            "npu::_dropout_with_byte_mask": Entry(),
        },
    ),
    "torchgen-backend": (
        "backend: NPU\nsupported:\n- view\n- func: copy_\n  op_api: True\ncustom:\n- func: get_npu_format(Tensor x)",
        {"namespace": "npu"},
        {"aten::view": Entry(), "aten::copy_": Entry(), "npu::get_npu_format": Entry()},
    ),
    "opinfo-failures": (
        "nn.functional.linear:\n  test_compare_cpu: [float32]\n_refs.mul:\n  test_compare_cpu: [float32]\n"
        "linalg.norm:\n  test_out: [float32]",
        {"test": "test_compare_cpu"},
        {"aten::linear.*": Entry(status="unknown", fails=("float32",), note="left out of test_compare_cpu")},
    ),
    "musa": (
        "- func: abs\n- func: mm.out\n  dispatch:\n    PrivateUse1: MmOut\n- func: unsqueeze\n  dispatch:\n"
        "    QuantizedPrivateUse1: UnsqueezeQuantized\n- func: view\n  dispatch:\n"
        "    PrivateUse1, QuantizedPrivateUse1: view",
        {},
        {"aten::abs": Entry(), "aten::mm.out": Entry(), "aten::view": Entry()},
    ),
    "gaudi": (
        "mm:\n  dtypes:\n    Gaudi: [Float]\n    Gaudi3: [BFloat16, Float8_e4m3fn]\nabs:\n  dtypes: [Float]\n"
        "where.self:\n  fallback_check: [WhereFallbackCheck, condition, self]\n"
        "quantize_per_tensor:\n  custom_op_schema: 'quantized_decomposed::quantize_per_tensor(Tensor x) -> Tensor'",
        {"device": "Gaudi3"},
        {
            "aten::mm": Entry(dtypes=("bfloat16", "float8_e4m3fn")),
            "aten::abs": Entry(dtypes=("float32",)),
            "aten::where.self": Entry(note="falls back to the CPU for some of: condition, self"),
            "quantized_decomposed::quantize_per_tensor": Entry(),
        },
    ),
    "xpu-fallback": (
        'std::vector<std::string> fallback_list = {\n  "ormqr",\n  // "mm",\n  "_linalg_svd.U",\n};',
        {},
        {
            "aten::ormqr": Entry(status="fallback", via="CPU"),
            "aten::_linalg_svd.U": Entry(status="fallback", via="CPU"),
        },
    ),
    "library-definitions": (
        'ops.def("swap_blocks(Tensor! x) -> ()");\nops.def(\n  "mla_preprocess(Tensor x, "\n  "Tensor y) -> Tensor");\n'
        'ops.def("plain");',
        {"namespace": "_C_ascend"},
        {"_C_ascend::swap_blocks": Entry(), "_C_ascend::mla_preprocess": Entry(), "_C_ascend::plain": Entry()},
    ),
    "flaggems": (
        """
ops:
- {id: add, for: [add.Tensor], labels: [aten], stages: [{stable: '1.0'}]}
- {id: grouped_mm, for: [_grouped_mm], labels: [aten, skip_precision_check], stages: [{alpha: '5.0'}, {beta: '5.3'}]}
- {id: topk_softmax, for: [_moe_C.topk_softmax], labels: [fused, vLLM], stages: [{stable: 4.0}]}
- {id: geglu, for: [geglu], labels: [fused]}
- {id: gone, for: [gone], labels: [aten], stages: [{removed: '5.0'}]}
- {id: combine, for: [vllm.v1.attention.ops.combine], labels: [fused]}
- {id: act_quant, for: ['None'], labels: [fused]}
""",
        {},
        {
            "aten::add.Tensor": Entry(via="add", note="stable 1.0"),
            "aten::_grouped_mm": Entry(via="grouped_mm", note="beta 5.3, its precision is not tested"),
            "_moe_C::topk_softmax": Entry(note="stable 4.0"),
            "flag_gems::geglu": Entry(),
        },
    ),
    "flaggems-black-list": (
        "unsupported_operators:\n- name: std\n  reason: 'All dtypes\n    failed'\nsummary: {total_unsupported: 1}",
        {},
        {"flag_gems::std": Entry(status="missing", note="All dtypes failed")},
    ),
    "mps-unimplemented": (
        "import torch\ndef f():\n    UNIMPLEMENTED_XFAILLIST: dict[str, list | None] = {\n"
        '        "linalg.eig": None,  # "mm": None\n        "put": [torch.int8, torch.uint8],\n    }\n',
        {},
        {
            "aten::linalg_eig.*": Entry(status="unknown", note="torch's tests expect it to fail, as not implemented"),
            "aten::put.*": Entry(
                status="unknown",
                fails=("int8", "uint8"),
                note="torch's tests expect it to fail, as not implemented",
            ),
        },
    ),
}


@pytest.mark.parametrize("parser", PARSERS)
def test_each_parser_reads_its_vendors_file(parser: str) -> None:
    text, options, expected = SMALL[parser]
    assert parse(Document("vendor.txt", text.encode()), parser, options) == expected
    with_mark = parse(Document("vendor.txt", b"\xef\xbb\xbf" + text.encode()), parser, options)
    assert with_mark == expected


def test_torch_has_kernels_without_a_key_of_their_own_for_cpu_and_cuda_only() -> None:
    for key, there in (("CPU", True), ("CUDA", True), ("MPS", True), ("SparseCPU", True), ("Meta", False)):
        if there:
            assert "aten::add.out" in parse(Document("x", TORCH.encode()), "torch", {"key": key})
        else:
            with pytest.raises(InputError, match="names no operator"):
                parse(Document("x", TORCH.encode()), "torch", {"key": key})
    assert "aten::mm" not in parse(Document("x", TORCH.encode()), "torch", {"key": "MPS"})


def test_an_operator_that_is_declared_twice_is_not_half_believed() -> None:
    twice = b"- func: mm(Tensor x)\n  dispatch: {CUDA: mm_cuda}\n- func: mm(Tensor x)\n  dispatch: {CPU: mm_cpu}\n"
    with pytest.raises(InputError, match="declares mm twice"):
        parse(Document("x", twice), "torch", {"key": "CUDA"})


#: Files that say two things of one operator.
CONTRADICTIONS = {
    "opinfo-failures": "nn.functional.linear:\n  test_compare_cpu: [int8]\nlinear:\n  test_compare_cpu: [int16]\n",
    "flaggems": "ops:\n- {id: add, stages: [{beta: '5.0'}]}\n- {id: add, stages: [{removed: '5.0'}]}\n",
    "flaggems-black-list": "unsupported_operators:\n- {name: std, reason: slow}\n- {name: std, reason: wrong}\n",
    "mps-unimplemented": "UNIMPLEMENTED_XFAILLIST: dict = {'put': None, 'put': [torch.int8]}\n",
}


@pytest.mark.parametrize("parser", CONTRADICTIONS)
def test_what_a_file_says_twice_it_has_to_say_alike(parser: str) -> None:
    with pytest.raises(InputError, match=r"^x .*which of them holds is not known$"):
        parse(Document("x", CONTRADICTIONS[parser].encode()), parser, SMALL[parser][1])


#: Of each parser whose file is YAML: a key of its file, where it stands again.
REPEATED = sorted(p for p in PARSERS if p not in ("xpu-fallback", "library-definitions", "mps-unimplemented"))


@given(st.sampled_from(REPEATED), st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.data())
def test_a_key_that_stands_twice_is_refused_with_its_lines(parser: str, key: str, data: st.DataObject) -> None:
    """Whatever the two say, and however deep they stand."""
    values = st.sampled_from(["1", "[a, b]", "{x: 1}", "text", "null"])
    depth = data.draw(st.integers(0, 3))
    head = "".join(f"{'  ' * i}level{i}:\n" for i in range(depth))
    lines = [f"{'  ' * depth}{name}: {data.draw(values)}\n" for name in (key, f"between_{key}", key)]
    with pytest.raises(InputError) as error:
        parse(Document("vendor.yaml", (head + "".join(lines)).encode()), parser, SMALL[parser][1])
    first = depth + 1
    twice = f"the key {key!r} stands twice in one mapping, in lines {first} and {first + 2}"
    assert str(error.value) == f"vendor.yaml is not valid YAML: {twice}"


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [" + ", ".join([f"*{chr(97 + i)}"] * 8) + "]\n" for i in range(20)
)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"<!DOCTYPE html><html><body>404: Not Found</body></html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
        b"- func: 7\n- func: [mm]",
        b"- func: 'mm; rm -rf(Tensor x)'\n",
        b"official: 5\nsupported: {a: b}\nops: x\nunsupported_operators: {}\nall_version: [v1]",
        b"ops: [1]\nunsupported_operators: [1]\nsupported: [[1]]\nofficial: [null]\nall_version: [v1]",
        b"mm: 5\n",
        b"a" * 100 + b": &x *x",
        b"[" * 100_000,
        b"- func: mm\n  dispatch: [CPU]\n",
        b"? {a: b}\n: {c: d}\n",
        b"x: 1" + b"0" * 5000,
        BOMB.encode(),
    ],
    ids=range(15),
)
def test_a_hostile_file_is_one_clear_error(parser: str, content: bytes) -> None:
    with pytest.raises(InputError, match=r"^vendor\.txt ") as error:
        parse(Document("vendor.txt", content), parser, SMALL[parser][1])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=200), st.integers(0, 1000))
def test_whatever_is_cut_out_or_put_in_is_read_or_refused(parser: str, junk: bytes, place: int) -> None:
    text, options, _ = SMALL[parser]
    content = text.encode()
    for damaged in (content[:place], content[:place] + junk + content[place:], junk):
        try:
            found = parse(Document("x", damaged), parser, options)
        except (InputError, ValueError):  # ValueError: an entry that pydantic refuses, an InputError in a refresh
            continue
        assert found


def test_a_file_may_not_be_endless_nor_name_endlessly_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="believed"):
        Document("x", b"a" * (MOST_BYTES + 1))
    with pytest.raises(InputError, match="believed"):
        read_document(Path("/dev/zero"))
    monkeypatch.setattr(document_module, "MOST_OPERATORS", 2)
    with pytest.raises(InputError, match="not believed"):
        parse(Document("x", b"- func: a\n- func: b\n- func: c"), "musa", {})


@pytest.mark.parametrize("name", list_names())
def test_the_lists_that_are_kept(name: str, tmp_path: Path) -> None:
    content = load_list(name)
    assert content.parser in PARSERS
    assert content.source.commit
    assert content.source.date or content.source.repository == "PyPI torch"
    write_list(tmp_path / "again.yaml", content)
    assert read_list(tmp_path / "again.yaml") == content
    assert (tmp_path / "again.yaml").read_bytes() == (PROJECT / f"configs/operators/lists/{name}.yaml").read_bytes()


def test_every_target_finds_its_operators_and_their_lists() -> None:
    for path in sorted((PROJECT / "configs/targets").glob("*.yaml")):
        target = load_target(path.stem)
        settings = operator_settings(path.stem, target)
        assert set(settings.lists) == set(settings.operators.lists)
    used = {name for path in (PROJECT / "configs/operators").glob("*.yaml") for name in _lists_of(path)}
    assert used == set(list_names())


def _lists_of(path: Path) -> tuple[str, ...]:
    return load_config(path, TargetOperators).lists


def test_a_target_without_operators_or_a_list_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target("cpu")
    with pytest.raises(InputError, match="did you mean 'cuda'"):
        operator_settings("x", target.model_copy(update={"operators": "cudaa"}))
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "npu.yaml").write_text("lists: [../../etc]\nsource: x\n")
    monkeypatch.setenv("DAY0_CONFIGS", str(tmp_path))
    with pytest.raises(InputError, match="no operator list named"):
        operator_settings("x", target.model_copy(update={"operators": "npu"}))


def test_the_torch_lists_say_what_the_traps_are() -> None:
    cuda = load_list("torch-cuda")
    assert cuda.find("aten::add.out") == Entry()
    assert cuda.find("aten::mm") == Entry(via="aten::mm.out")
    assert cuda.find("aten::_grouped_mm") == Entry()
    assert cuda.find("aten::copy") is None
    assert load_list("xpu-kernels").find("aten::add.out") == Entry()
    assert load_list("torch-xpu").find("aten::mm") == Entry(via="aten::mm.out")
    for name in ("ascend-op-plugin", "ascend-torch-npu", "musa", "gaudi"):
        assert load_list(name).find("aten::_grouped_mm") is None
    assert load_list("gaudi").find("aten::histc") is None


@pytest.mark.reference
def test_the_list_of_the_cpu_is_what_its_dispatcher_has() -> None:
    import torch

    listed = load_list("torch-cpu")
    if torch.__version__.partition("+")[0] != listed.source.commit:
        pytest.fail(f"the list is of torch {listed.source.commit}, and torch {torch.__version__} is installed: refresh")
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    registered = {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")}
    through = {name for name, entry in listed.operators.items() if entry.via}
    assert all(listed.operators[name].via in registered for name in through)
    assert set(listed.operators) - through <= registered
    # Defined in C++ alone, for quantised tensors.
    assert {name.partition(".")[0] for name in registered - set(listed.operators)} == {
        "aten::quantized_gru",
        "aten::quantized_lstm",
    }


@contextmanager
def served(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_refreshing_from_a_url_names_what_changed(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    with served(b"- func: abs\n- func: never_there_before\n") as url:
        done = refresh("musa", f"{url}/x/{commit}/musa_functions.yaml", folder=tmp_path, force=True)
    assert done.added == ("aten::never_there_before",)
    assert "aten::mm" in done.removed
    assert done.changed == ()
    kept = read_list(tmp_path / "musa.yaml")
    assert set(kept.operators) == {"aten::abs", "aten::never_there_before"}
    assert (kept.source.commit, kept.source.date) == (commit, None)
    assert kept.source.retrieved == datetime.datetime.now(datetime.UTC).date()
    assert kept.source.licence == load_list("musa").source.licence


@pytest.mark.parametrize(("status", "error"), [(404, InputError), (503, Unavailable)])
def test_a_server_that_does_not_send_it_is_said(status: int, error: type[Exception], tmp_path: Path) -> None:
    with served(b"- func: abs\n", status) as url, pytest.raises(error, match=str(status)):
        refresh("musa", url, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_server_and_no_address() -> None:
    with pytest.raises(Unavailable, match="cannot be had"):
        fetch("http://127.0.0.1:9/x")
    with pytest.raises(InputError, match="no address"):
        fetch("http://")


def test_a_refused_file_leaves_the_list_as_it_was(tmp_path: Path) -> None:
    kept = tmp_path / "musa.yaml"
    kept.write_text("as it was")
    bad = tmp_path / "bad.txt"
    bad.write_text("<html>not found</html>")
    with pytest.raises(InputError, match=r"bad\.txt"):
        refresh("musa", str(bad), folder=tmp_path)
    assert kept.read_text() == "as it was"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.txt", "musa.yaml"]


@pytest.mark.parametrize("name", ["musa", "gaudi"])
def test_a_file_that_was_cut_off_does_not_become_the_list(name: str, tmp_path: Path) -> None:
    """It may well parse: a list of YAML can end after each of its lines."""
    operators = [one.removeprefix("aten::") for one in load_list(name).operators if one.startswith("aten::")]
    form = "- func: {}\n" if name == "musa" else "{}:\n  acc_thread: true\n"
    file = tmp_path / "vendor.yaml"
    for kept, refused in ((0.1, True), (0.85, True), (0.95, False)):
        file.write_text("".join(form.format(one) for one in operators[: int(kept * len(operators))]))
        if refused:
            with pytest.raises(
                InputError, match=r"vendor\.yaml lacks [\d,]+ of the [\d,]+ operators .*--force"
            ) as error:
                refresh(name, str(file), folder=tmp_path)
            assert "\n" not in str(error.value)
            assert not (tmp_path / f"{name}.yaml").exists()
        else:
            assert refresh(name, str(file), folder=tmp_path).removed
    file.write_text(form.format(operators[0]))
    assert len(refresh(name, str(file), folder=tmp_path, force=True).after.operators) == 1


@pytest.mark.parametrize("page", ["<!DOCTYPE html>\n<html>", "\n <html lang='en'>", "<?xml version='1.0'?>"])
def test_a_web_page_is_told_for_what_it_is(page: str) -> None:
    with pytest.raises(InputError, match="is a web page, and not the file itself"):
        Document("https://example.org/blob/x.yaml", page.encode())


def test_the_same_content_keeps_its_commit_and_another_does_not(tmp_path: Path) -> None:
    old = remade(load_list("musa"), Document("x", b"- func: abs\n"), commit="c" * 40, date=datetime.date(2026, 1, 2))
    again = remade(old, Document("x", b"- func: abs\n"))
    assert (again.source.commit, again.source.date) == ("c" * 40, datetime.date(2026, 1, 2))
    other = remade(old, Document("x", b"- func: neg\n"))
    assert (other.source.commit, other.source.date) == (None, None)
    assert "unknown commit" in other.source.describe()


def test_a_dtype_that_torch_does_not_have_is_an_error_that_names_the_file() -> None:
    with pytest.raises(InputError, match=r"x: .*no dtype"):
        remade(load_list("ascend-failures"), Document("x", b"mm:\n  test_compare_cpu: [Float]\n"))


def test_the_command_lists_and_refuses() -> None:
    run = CliRunner().invoke
    shown = json.loads(run(cli, ["operator-lists", "--json"]).stdout)["lists"]
    assert [one["name"] for one in shown] == list(list_names())
    assert all(one["operators"] and one["source"]["licence"] for one in shown)
    assert "MooreThreads/torch_musa" in run(cli, ["operator-lists", "list", "musa"]).stdout.replace("\n", "")
    missing = run(cli, ["operator-lists", "list", "musaa"])
    assert (missing.exit_code, "did you mean 'musa'" in missing.stderr) == (2, True)
    for wrong in (["refresh"], ["refresh", "musa"], ["--from", "x"], ["refresh", "musa", "--from", "/nowhere"]):
        assert run(cli, ["operator-lists", *wrong]).exit_code == 2
