"""Small artifacts of a whole run, as the stages would make them."""

from __future__ import annotations

from pathlib import Path

from day0 import engine_kernels
from day0.artifacts.benchmark import BenchmarkReport, Cell, Percentiles, Roofline
from day0.artifacts.kernels import GivenKernel, KernelBundle
from day0.artifacts.multimodal import MultimodalReport
from day0.artifacts.operators import Operator, OperatorReport, Phase
from day0.artifacts.plan import DeviceMemory, Layout, ParallelPlan
from day0.artifacts.profile import CheckpointSize, KVCache, Parameters, Profile
from day0.artifacts.service import FirstCompletion, LaunchSpec, Runtime, Service
from day0.artifacts.shards import RankShards
from day0.artifacts.smoke import Distribution, PromptParity, SmokeReport
from day0.artifacts.snapshot import Snapshot
from day0.files import FileRef
from day0.verdict import Check, Verdict
from tasks.recipe.evidence import Evidence

#: Everything that breaks a page, a shell or a YAML file that was pasted together.
HOSTILE = (
    """<script>alert('x')</script> "quoted" it's $(touch /tmp/day0-pwned) `id` $HOME ${HOME} %s {{ 7*7 }} # : - é\t|"""
)

NORM = GivenKernel(name="norm", backend="cpu", places=("vllm_ir::rms_norm",))
ROTARY = GivenKernel(name="rotary", backend="cpu", places=("vllm::rotary_embedding",))


def passed(reason: str = "all is well") -> tuple[Check, ...]:
    return (Check(name="check", verdict=Verdict.PASS, reason=reason),)


def with_kernels(recorded: LaunchSpec, folder: str = "/store/kernels of it") -> LaunchSpec:
    """A launch with accepted kernels, as the service stage makes it."""
    own = recorded.model_copy(update={"env": {**recorded.env, "PYTHONPATH": "/own"}})
    return engine_kernels.with_kernels(own, (NORM, ROTARY), Path(folder))


def launch(
    runtime: Runtime = "process", model_path: str = "/models/small model", name: str = "org/small"
) -> LaunchSpec:
    docker = runtime == "docker"
    return LaunchSpec(
        engine="vllm-cpu",
        engine_version="0.32.0",
        runtime=runtime,
        environment="sha256:" + "ab" * 32 if docker else "/environments/vllm cpu",
        lock_digest="cd" * 32,
        model_path=model_path,
        served_model_name=name,
        command=(
            "python", "-m", "vllm.entrypoints.openai.api_server", "--host", "0.0.0.0" if docker else "127.0.0.1",
            "--port", "8000" if docker else "{port}", "--model", "/model" if docker else model_path,
            "--served-model-name", name, "--load-format", "sharded_state", "--max-model-len", "2048", "--enforce-eager",
        ),
        env={"VLLM_NO_USAGE_STATS": "1", "HF_TOKEN": "hf_secret", "NOTE": "a b"},
        memory_bytes=4 << 30,
        ready_timeout=900,
    )  # fmt: skip


def percentiles(scale: float) -> Percentiles:
    return Percentiles(count=4, mean=scale, p50=scale, p90=scale * 1.4, p99=scale * 1.9, max=scale * 2)


def cell(concurrency: int, state: str, scale: float) -> Cell:
    return Cell.model_validate(
        {
            "concurrency": concurrency, "prefix_cache": state, "requests": 4, "completed": 4, "errors": (),
            "input_tokens": 2560, "output_tokens": 128, "seconds": 9.0, "ttft": percentiles(1.1 * scale),
            "tpot": percentiles(0.045 * scale), "itl": percentiles(0.044 * scale), "e2e": percentiles(2.5 * scale),
            "output_tokens_per_second": 14.2 * concurrency / scale, "finish_reasons": {"length": 4},
            "prefix_cache_hit_rate": 0.8 if state == "warm" else 0.0,
        }
    )  # fmt: skip


def benchmark() -> BenchmarkReport:
    return BenchmarkReport(
        checks=passed("4 cells measured"),
        formulas={"ttft": "first token - start"},
        conditions={"input_tokens": 640, "output_tokens": 32, "seed": 1, "load": "closed loop", "date": "2026-01-01"},
        machine={
            "cpu": "CPU", "usable_cores": 2, "memory": 24 << 30, "load_average_before": [0.4, 0.3, 0.2],
            "load_average_after": [1.9, 0.9, 0.5],
        },
        cells=(cell(1, "cold", 1), cell(4, "cold", 2.2), cell(1, "warm", 0.5), cell(4, "warm", 1)),
        roofline=Roofline(
            bytes_per_step=283_775_616, weight_bytes=269_030_016, kv_bytes=14_745_600, bandwidth=3.2e10,
            least_seconds_per_token=0.0088, measured_seconds_per_token=0.045, share=0.195,
        ),
    )  # fmt: skip


def parity(name: str, scale: float) -> PromptParity:
    def spread(mean: float) -> Distribution:
        return Distribution(count=60, mean=mean, p50=mean * 0.7, p90=mean * 2, p99=mean * 4, max=mean * 5)

    return PromptParity(
        prompt=name,
        tokens=60,
        error=spread(0.03 * scale),
        reference_error=spread(0.028 * scale),
        top1_agreement=0.98,
        ratio=1.07,
        median_ratio=1.04,
    )


def smoke(text: str) -> SmokeReport:
    prompts = (parity("short", 0.8), parity("facts", 1), parity("code", 1.2), parity(text, 0.9))
    return SmokeReport(
        checks=passed("the served model answers as the reference does"),
        reference={"library": "transformers"},
        engine_dtype="bfloat16",
        prompts=prompts,
        error=prompts[0].error,
        reference_error=prompts[0].reference_error,
        top1_agreement=0.984,
        ratio=1.07,
        generations=({"prompt": f"Say {text}", "text": text * 2, "finish_reason": "length"},),
        thresholds={},
    )


def evidence(runtime: Runtime = "process", text: str = "plain", path: str = "/models/small model") -> Evidence:
    """A run in which all is well. `text` is what the model's names, files and answers say."""
    files = (FileRef(name=f"{text}.safetensors", bytes=10, sha256="0" * 64),)
    layout = Layout(
        tp=1, pp=1, ep=1, dp=1, devices=1, stages=((0, 30),),
        per_device=DeviceMemory(
            weights=270 << 20, kv_cache=500 << 20, activations=200 << 20, overhead=1 << 30, total=1994 << 20,
            capacity=20 << 30,
        ),
    )  # fmt: skip
    kinds = {"attention": 26_542_080, "mlp": 79_626_240, "norm": 35_136, "embedding": 28_311_552}
    return Evidence(
        snapshot=Snapshot(
            checks=passed(), files=files, source=f"dir:{path}", name=f"org/{text}", revision="f" * 40, location=path,
            bytes=269_030_016, tensors=272, digests_from="manifest",
        ),
        profile=Profile(
            checks=passed(text),
            architecture={"model_type": "llama"},
            parameters=Parameters(
                total=134_515_008, active=134_515_008, active_without_embedding=106_203_456, by_kind=kinds,
                by_layer=(3_540_096,) * 30,
            ),
            context_length=8192, context=2048, concurrency=4,
            kv_cache=KVCache(
                dtype="bfloat16", index_dtype="bfloat16", state_dtype="float32", bytes_per_token=23040,
                bytes_per_sequence=0, bytes_at_context=4 * 2048 * 23040,
                by_layer_kind=(),
            ),
            checkpoint=CheckpointSize(files=3, tensors=272, bytes=269_030_016),
        ),
        plan=ParallelPlan(
            checks=passed(), target="cpu", feasible=True, minimum_devices=1, chosen=layout, max_context=8192,
            context=2048, concurrency=4, weight_dtype="bfloat16", kv_dtype="bfloat16", engine_args={},
        ),
        shards=RankShards.model_validate({
            "checks": passed(), "files": files, "layout": "vllm", "engine": "vllm 0.32.0", "tp": 1, "pp": 1, "ep": 1,
            "ranks": 1, "bytes_read": 10, "bytes_written": 10, "source": "9" * 64,
        }),
        operators=OperatorReport(
            checks=passed(), target="cpu", prompt=128, context=2048, gaps=(),
            phases={"decode": Phase(
                operators=(Operator(name="aten.mm", calls=3, flops=1.0, bytes=1.0, share=1.0, status="native"),),
                flops=1.0, bytes=1.0,
            )},
        ),
        kernels=KernelBundle(
            checks=(Check(name="kernels", verdict=Verdict.SKIPPED, reason="nothing is missing"),), target="cpu"
        ),
        service=Service(
            checks=passed(), launch=launch(runtime, path, f"org/{text}"), ready_seconds=38.2,
            load_format="sharded_state",
            first_completion=FirstCompletion(prompt="Hello", text=text, tokens=4, seconds=0.4), security={},
            max_model_len=2048,
        ),
        smoke=smoke(text),
        multimodal=MultimodalReport(
            checks=(Check(name="vision", verdict=Verdict.SKIPPED, reason="no vision tower"),)
        ),
        benchmark=benchmark(),
    )  # fmt: skip
