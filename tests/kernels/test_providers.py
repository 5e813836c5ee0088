"""Kernels of the hub and of FlagGems are tried as our own are: fetched, pinned, accepted or rejected, or not here."""

from __future__ import annotations

import socket
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from day0.errors import EvidenceMissing, InputError
from day0.target_operators import Device
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import accept
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.load import as_tuple
from tasks.kernels.modules import load_module
from tasks.kernels.providers import hub
from tasks.kernels.providers.adapter import adapted
from tasks.kernels.providers.listed import black_listed, fits
from tasks.kernels.providers.packages import missing
from tasks.kernels.timing_ways import Entrant, Way, asked
from tasks.kernels.verdicts import accepted, known
from tests.hub import LocalHub
from tests.kernels.conftest import KERNEL_YAML, MakeKernel
from tests.kernels.providing import ADAPTER, REPOSITORY, RIGHT, WRONG, with_hub, write_repository

pytestmark = pytest.mark.reference

CPU = Device("cpu", "CPU")


@pytest.fixture
def served(tmp_path: Path, kernels_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub with one repository of kernels, of a publisher that it trusts, and nothing in any cache."""
    monkeypatch.delenv("LOCAL_KERNELS", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with LocalHub(tmp_path / "served") as local:
        monkeypatch.setenv("HF_ENDPOINT", local.url)
        local.publishers.add("community")
        local.push(REPOSITORY, write_repository(tmp_path / "repository"))
        yield local


def test_the_hubs_kernel_is_accepted_and_found_again(served: LocalHub, make_kernel: MakeKernel, tmp_path: Path) -> None:
    definition = KernelDefinition(with_hub(make_kernel))
    commit = served.repositories[REPOSITORY].commits[-1].sha
    kernel = accepted(definition, "hub", CPU)
    assert kernel.verdict is Verdict.PASS, kernel.error
    assert kernel.error["package"].startswith(f"{REPOSITORY} at {commit}, files ")
    assert kernel.error["calls"]["answered"] > 0
    assert set(kernel.error["calls"]["declined"]) == {"nothing for nothing"}
    served.push(REPOSITORY, write_repository(tmp_path / "newer", WRONG))
    asked = len(served.requests)
    assert known(definition, "hub", CPU) == kernel
    assert accept(definition, "hub", device=CPU).verdict is Verdict.PASS
    assert len(served.requests) == asked


def test_a_wrong_one_is_rejected_by_the_same_tests(served: LocalHub, make_kernel: MakeKernel, tmp_path: Path) -> None:
    served.push(REPOSITORY, write_repository(tmp_path / "wrong", WRONG))
    kernel = accept(KernelDefinition(with_hub(make_kernel)), "hub", device=CPU)
    assert kernel.verdict is Verdict.FAIL
    assert kernel.error["kind"] == "error"
    assert "size=1025" in kernel.error["reason"]


def test_files_that_are_not_the_builds_are_not_run(served: LocalHub, make_kernel: MakeKernel, tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "changed")
    (repository / "build" / "torch-cpu" / "__init__.py").write_text(RIGHT + "import os\n")
    served.push(REPOSITORY, repository)
    kernel = accept(KernelDefinition(with_hub(make_kernel)), "hub", device=CPU)
    assert kernel.verdict is Verdict.INCONCLUSIVE
    assert "torch-cpu: DigestValidationError" in kernel.error["reason"]


def test_who_is_not_trusted_must_be_named(
    served: LocalHub, make_kernel: MakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.publishers.clear()
    definition = KernelDefinition(with_hub(make_kernel))
    kernel = accept(definition, "hub", device=CPU)
    assert kernel.verdict is Verdict.INCONCLUSIVE
    assert "is not from a trusted publisher" in kernel.error["reason"]
    assert hub.TRUSTED in kernel.error["reason"]
    monkeypatch.setenv(hub.TRUSTED, f"other/kernel, {REPOSITORY}")
    assert hub.fetch(REPOSITORY, "1").commit


def test_without_a_build_for_this_machine_nothing_is_loaded(
    served: LocalHub, make_kernel: MakeKernel, tmp_path: Path
) -> None:
    served.push(REPOSITORY, write_repository(tmp_path / "other", variant="torch-cuda"))
    kernel = accept(KernelDefinition(with_hub(make_kernel)), "hub", device=CPU)
    assert kernel.verdict is Verdict.INCONCLUSIVE
    assert "none of its builds is for this machine: torch-cuda" in kernel.error["reason"]


def test_without_the_hub_it_is_inconclusive(
    make_kernel: MakeKernel, kernels_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    kernel = accept(KernelDefinition(with_hub(make_kernel)), "hub", device=CPU)
    assert kernel.verdict is Verdict.INCONCLUSIVE
    assert kernel.error["reason"].startswith(f"the hub's {REPOSITORY} cannot be tried: ")


def test_a_local_folder_stands_in_for_the_hub(
    make_kernel: MakeKernel, kernels_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_repository(tmp_path / "mine")
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={folder}")
    definition = KernelDefinition(with_hub(make_kernel))
    kernel = accepted(definition, "hub", CPU)
    assert kernel.verdict is Verdict.PASS, kernel.error
    assert kernel.error["package"].startswith(f"{REPOSITORY} in a local folder, files ")
    assert known(definition, "hub", CPU) == kernel
    write_repository(folder, WRONG)
    assert known(definition, "hub", CPU).verdict is Verdict.INCONCLUSIVE


def test_a_package_that_declines_everything_is_not_accepted(
    make_kernel: MakeKernel, kernels_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={write_repository(tmp_path / 'mine')}")
    declining = ADAPTER.replace('"" if x.numel() else "nothing for nothing"', '"no numbers"')
    kernel = accept(KernelDefinition(with_hub(make_kernel, **{"hub.py": declining})), "hub", device=CPU)
    assert kernel.verdict is Verdict.INCONCLUSIVE
    assert kernel.error["reason"].endswith("has nothing for any case: no numbers")


@pytest.mark.parametrize("requires", ["", "main", "1.0", "abc"])
def test_a_version_of_the_hub_is_a_number_or_a_commit(kernels_home: Path, requires: str) -> None:
    with pytest.raises(InputError, match="is neither a version such as 1 nor a commit"):
        hub.fetch(REPOSITORY, requires)
    with pytest.raises(EvidenceMissing, match="not accepted yet"):
        hub.pinned(REPOSITORY, requires)


def test_what_is_not_installed_is_inconclusive_with_the_remedy(make_kernel: MakeKernel, kernels_home: Path) -> None:
    listed = "  flaggems: {module: triton/kernel.py, package: no_such_package, requires: '==5.0.2'}\n"
    definition = KernelDefinition(make_kernel(**{"kernel.yaml": KERNEL_YAML + listed}))
    kernel = accept(definition, "flaggems")
    assert kernel.verdict is Verdict.INCONCLUSIVE
    remedy = "no_such_package is not installed: pip install --no-deps 'no_such_package==5.0.2'"
    assert kernel.error["reason"] == known(definition, "flaggems").error["reason"] == remedy


def test_another_version_than_the_adapters_is_not_tried(make_kernel: MakeKernel) -> None:
    listed = "  flaggems: {module: triton/kernel.py, package: torch, requires: '==0.1'}\n"
    spec = KernelDefinition(make_kernel(**{"kernel.yaml": KERNEL_YAML + listed})).backend("flaggems")
    assert "is installed, and the adapter is written for torch==0.1" in missing(spec, "flaggems")


def test_a_vendors_black_list_withholds_an_adapter() -> None:
    router = find_kernel("router_topk")
    assert "FlagGems' own list for metax says that it does not work: topk_softmax" in black_listed(
        router, "flaggems", "metax-c500"
    )
    assert black_listed(router, "flaggems", "h100") == ""
    assert black_listed(find_kernel("rotary"), "flaggems", "metax-c500") == ""
    assert not fits(find_kernel("kv_cache_write"), "hub", "cpu")
    assert fits(find_kernel("rotary"), "hub", "cpu")


# The signatures of FlagGems 5.0.2 (src/flag_gems/fused and ops, Apache-2.0), with what each computes in plain torch.


def _fused_add_rms_norm(x: Any, residual: Any, normalized_shape: Any, weight: Any, eps: float = 1e-5) -> Any:
    assert x.is_contiguous()
    assert list(normalized_shape) == [x.shape[-1]]
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight)
    return x, residual


def _silu_and_mul(a: Any, b: Any) -> Any:
    return (torch.nn.functional.silu(a.float()) * b).to(a.dtype)


def _gelu_and_mul(x: Any, y: Any, approximate: str = "none") -> Any:
    return (torch.nn.functional.gelu(x.float(), approximate=approximate) * y).to(x.dtype)


def _apply_rotary_pos_emb(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    position_ids: Any = None,
    rotary_interleaved: bool = False,
    inplace: bool = False,
) -> Any:
    assert cos.shape[-1] * 2 == q.shape[-1] == k.shape[-1]
    assert cos.stride(-1) == sin.stride(-1) == 1
    assert position_ids.shape == q.shape[:-2]
    theirs = find_kernel("rotary").reference
    return theirs(position_ids, q, k, torch.cat((cos, sin), -1), rotary_interleaved)


def _topk_softmax(
    topk_weights: Any, topk_indices: Any, token_expert_indices: Any, gating_output: Any, renormalize: bool = False
) -> None:
    assert topk_weights.dtype == torch.float32
    assert topk_indices.dtype == token_expert_indices.dtype == torch.int32
    assert gating_output.is_contiguous()
    weights, ids = gating_output.float().softmax(-1).topk(topk_weights.shape[1])
    topk_weights.copy_(weights / weights.sum(-1, keepdim=True) if renormalize else weights)
    topk_indices.copy_(ids)


def _grouped_topk(
    scores: Any,
    n_group: int,
    topk_group: int,
    topk: int,
    renormalize: bool,
    routed_scaling_factor: float,
    bias: Any,
    scoring_func: int = 0,
) -> Any:
    assert scores.dtype == torch.float32
    assert scoring_func == 1
    theirs = find_kernel("router_topk").reference
    return theirs(scores, bias, topk, "sigmoid", n_group, topk_group, renormalize, routed_scaling_factor)


def _reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any,
    v_scale: Any,
) -> None:  # fmt: skip
    assert kv_cache_dtype == "auto"
    assert key.stride(1) == key.shape[2]
    written = slot_mapping >= 0
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache.flatten(0, 1)[slot_mapping[written]] = new[written]


def _per_token_group_quant_fp8(
    x: Any,
    group_size: int,
    eps: float = 1e-10,
    dtype: Any = None,
    column_major_scales: bool = False,
    scale_ue8m0: bool = False,
) -> Any:
    assert x.shape[-1] % group_size == 0
    assert (dtype, eps) == (torch.float8_e4m3fn, 1e-10)
    return find_kernel("fp8_block_quantise").reference(x, 1, group_size, scale_ue8m0)


def _group_mm(a: Any, b: Any, offs: Any) -> Any:
    assert a.shape[1] == b.shape[1]
    out = torch.full((a.shape[0], b.shape[2]), torch.nan, dtype=a.dtype)
    begin = 0
    for expert, end in enumerate(offs.tolist()):
        out[begin:end] = (a[begin:end].float() @ b[expert].float()).to(a.dtype)
        begin = end
    return out


def _flash_attn_varlen_func(
    q: Any, k: Any, v: Any, max_seqlen_q: int, cu_seqlens_q: Any, max_seqlen_k: int, cu_seqlens_k: Any = None,
    seqused_k: Any = None, q_v: Any = None, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
    window_size: Any = None, softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Any = None, return_softmax_lse: bool = False, out: Any = None,
    scheduler_metadata: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    s_aux: Any = None, num_splits: int = 0, cp_world_size: int = 1, cp_rank: int = 0, cp_tot_seqused_k: Any = None,
    fa_version: int = 2,
) -> Any:  # fmt: skip
    assert max_seqlen_q == 1
    assert causal
    assert cu_seqlens_q.dtype == seqused_k.dtype == torch.int32
    assert cu_seqlens_q.tolist() == list(range(q.shape[0] + 1))
    assert max_seqlen_k >= int(seqused_k.max())
    window = None if window_size is None else window_size[0] + 1
    theirs = find_kernel("paged_decode_attention").reference
    return theirs(q, k, v, block_table, seqused_k, softmax_scale, softcap or None, window, None, None)[0]


STAND_INS = {
    "fused_add_rms_norm": _fused_add_rms_norm,
    "silu_and_mul": _silu_and_mul,
    "gelu_and_mul": _gelu_and_mul,
    "apply_rotary_pos_emb": _apply_rotary_pos_emb,
    "topk_softmax": _topk_softmax,
    "grouped_topk": _grouped_topk,
    "reshape_and_cache_flash": _reshape_and_cache_flash,
    "per_token_group_quant_fp8": _per_token_group_quant_fp8,
    "group_mm": _group_mm,
    "flash_attn_varlen_func": _flash_attn_varlen_func,
}


def _apply_rotary(x1: Any, x2: Any, cos: Any, sin: Any, out1: Any, out2: Any, conj: bool) -> None:
    """The hub's: all of one dtype, cosines broadcast over heads, in place where given so."""
    assert x1.dtype == cos.dtype == out1.dtype
    assert not conj
    first, second = (
        x1.float() * cos.float() - x2.float() * sin.float(),
        x1.float() * sin.float() + x2.float() * cos.float(),
    )
    out1.copy_(first)
    out2.copy_(second)


def _hub_reshape(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any,
    v_scale: Any,
) -> None:  # fmt: skip
    assert k_scale.dtype == v_scale.dtype == torch.float32
    written = slot_mapping >= 0
    for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        rows = new[written]
        if kv_cache_dtype == "fp8":
            assert cache.dtype == torch.uint8
            rows = (rows.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        cache.flatten(0, 1)[slot_mapping[written]] = rows


def _with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, page_table: Any, softmax_scale: float, causal: bool,
    window_size: Any, softcap: float,
) -> Any:  # fmt: skip
    assert causal
    window = None if window_size == (-1, -1) else window_size[0] + 1
    theirs = find_kernel("paged_decode_attention").reference
    cap = softcap or None
    out = theirs(q[:, 0], k_cache, v_cache, page_table, cache_seqlens, softmax_scale, cap, window, None, None)
    return out[0].unsqueeze(1)


HUB_STAND_INS = {
    "kernels-community/rmsnorm": {
        "apply_rms_norm": lambda x, w, eps: (
            x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps) * w
        ).to(x.dtype)
    },
    "kernels-community/activation": {
        "silu_and_mul": lambda out, x: out.copy_(_silu_and_mul(*x.chunk(2, -1))),
        "gelu_and_mul": lambda out, x: out.copy_(_gelu_and_mul(*x.chunk(2, -1))),
        "gelu_tanh_and_mul": lambda out, x: out.copy_(_gelu_and_mul(*x.chunk(2, -1), "tanh")),
    },
    "kernels-community/rotary": {"apply_rotary": _apply_rotary},
    "kernels-community/paged-attention": {"reshape_and_cache_flash": _hub_reshape},
    "kernels-community/flash-attn3": {"flash_attn_with_kvcache": _with_kvcache},
}


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlagGems, and the hub's client, as modules of the signatures that they have."""
    gems, client = types.ModuleType("flag_gems"), types.ModuleType("kernels")
    vars(gems).update(STAND_INS)

    def get_kernel(repository: str, *, version: int) -> Any:
        assert find_version(repository) == str(version)
        return types.SimpleNamespace(**HUB_STAND_INS[repository])

    vars(client)["get_kernel"] = get_kernel
    monkeypatch.setitem(sys.modules, "flag_gems", gems)
    monkeypatch.setitem(sys.modules, "kernels", client)


def find_version(repository: str) -> str | None:
    specs = [find_kernel(name).file.backends.hub for name in kernel_names()]
    return next(spec.requires for spec in specs if spec and spec.package == repository)


def _asked_again(*args: Any) -> str:
    raise AssertionError("run asks declines, which day0 has asked before")


COUNTING = """
asked, ran = [], []


def declines(x, by):
    asked.append(x.numel())
    return "" if x.numel() > 2 else "too few"


def run(x, by):
    assert x.numel() > 2
    ran.append(x.numel())
    return x * by
"""


def test_a_package_is_asked_once_for_each_call_and_before_the_clock_runs(make_kernel: MakeKernel) -> None:
    """What it has nothing for never reaches it."""
    definition = KernelDefinition(with_hub(make_kernel, **{"hub.py": COUNTING}))
    adapter = adapted(definition, "hub")
    module = sys.modules[adapter.run.__module__]
    for size in (5, 1, 3):
        x = torch.ones(size)
        assert torch.equal(adapter(x, 2.0), x * 2)
    assert (module.asked, module.ran) == ([5, 1, 3], [5, 3])
    assert adapter.calls.to_json() == {"answered": 2, "declined": {"too few": 1}}
    for size, answered in ((4, True), (2, False)):
        x = torch.ones(size)
        way = Way("hub", partial(adapter.run, x, 2.0), Entrant("hub", adapter.run, adapter=adapter))
        timed = asked(way, (x, 2.0))
        assert (way.answered, module.asked[-1]) == (answered, size)
        before = len(module.asked)
        assert torch.equal(timed(), x * 2)
        assert len(module.asked) == before


ADAPTERS = [
    (name, backend)
    for name in kernel_names()
    for backend in ("flaggems", "hub")
    if backend in find_kernel(name).backends
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "backend"), ADAPTERS)
def test_an_adapter_gives_the_package_its_arguments(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch, name: str, backend: str, dtype: str
) -> None:
    definition = find_kernel(name)
    spec = definition.backend(backend)
    module = load_module(definition.folder / str(vars(spec)["module"]))
    answered, declines = 0, module.declines
    monkeypatch.setattr(module, "declines", _asked_again)
    for number, case in enumerate(c for c in definition.cases if not c.get("huge") and not c.get("bench")):
        args = definition.make(case, getattr(torch, dtype), torch.Generator().manual_seed(number), "cpu")
        if sum(value.numel() for value in args if isinstance(value, torch.Tensor)) > 1 << 20:
            continue
        if declines(*args):
            continue
        answered += 1
        expected = as_tuple(definition.reference(*args))
        given = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in args)
        outputs = as_tuple(module.run(*given))
        if definition.schema.mutates:
            outputs = tuple(v for v, about in zip(given, definition.arguments, strict=True) if about.mutated)
        else:
            for value, before, about in zip(given, args, definition.arguments, strict=True):
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value.view(torch.uint8), before.view(torch.uint8)), about.name
        assert [(o.shape, o.dtype, o.is_contiguous()) for o in outputs] == [(e.shape, e.dtype, True) for e in expected]
        if definition.comparable:
            outputs, expected = (as_tuple(definition.comparable(args, found)) for found in (outputs, expected))
        for output, right in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output.float(), right.float(), rtol=0.02, atol=0.02, equal_nan=True)
    assert answered or (name, dtype) in {("grouped_matmul", "float32"), ("paged_decode_attention", "float32")}
