"""Against torch's own number formats."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reshard.convert.reference import Case

pytestmark = pytest.mark.reference


@pytest.mark.parametrize(("dtype", "name"), [
    ("F8_E4M3", "float8_e4m3fn"), ("F8_E4M3FNUZ", "float8_e4m3fnuz"),
    ("F8_E5M2", "float8_e5m2"), ("F8_E5M2FNUZ", "float8_e5m2fnuz"),
])  # fmt: skip
@pytest.mark.parametrize(("target", "out"), [("BF16", "bfloat16"), ("F16", "float16"), ("F32", "float32")])
def test_fp8_times_scale(dtype: str, name: str, target: str, out: str) -> None:
    import torch

    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (300, 700)).astype(np.uint8)
    values = torch.from_numpy(codes).view(getattr(torch, name)).float()
    codes[~np.isfinite(values.numpy())] = 0
    values = torch.from_numpy(codes).view(getattr(torch, name)).float()
    scales = torch.from_numpy(np.exp(rng.standard_normal((3, 6)) * 2 - 6).astype(np.float32))
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:300, :700]
    wanted = (values * wide).to(getattr(torch, out)).contiguous().view(torch.uint8).numpy().tobytes()
    inputs = [(dtype, codes.shape, codes.tobytes()), ("F32", (3, 6), scales.numpy().tobytes())]
    assert Case("fp8_block_dequant", inputs, [(target, codes.shape)], block=(128, 128)).run([11]) == [wanted]


def test_bf16_rounding_of_random_bits() -> None:
    import torch

    bits = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32)
    bits = bits[np.isfinite(bits.view(np.float32)) & (np.abs(bits.view(np.float32)) < 3.3e38)]
    wanted = torch.from_numpy(bits.view(np.float32)).bfloat16().view(torch.uint8).numpy().tobytes()
    assert Case("cast", [("F32", bits.shape, bits.tobytes())], [("BF16", bits.shape)]).run([999]) == [wanted]


def test_fp8_codes_of_random_values() -> None:
    import torch

    values = np.random.default_rng(2).standard_normal((256, 384)).astype(np.float32)
    codes, scales = Case(
        "fp8_block_quant",
        [("F32", values.shape, values.tobytes())],
        [("F8_E4M3", values.shape), ("F32", (2, 3))],
    ).run()
    blocks = torch.from_numpy(values).view(2, 128, 3, 128)
    wanted_scales = blocks.abs().amax((1, 3)) / 448
    wanted = (blocks / wanted_scales[:, None, :, None]).to(torch.float8_e4m3fn).view(256, 384)
    assert scales == wanted_scales.numpy().tobytes()
    assert codes == wanted.view(torch.uint8).numpy().tobytes()


def test_nvfp4_and_int4_as_their_libraries_compute() -> None:
    """modelopt: e2m1 table x (scale x scale_2); compressed-tensors: (q - zero) in the scale's dtype, times it."""
    import torch

    rng = np.random.default_rng(3)
    packed = rng.integers(0, 256, (32, 32)).astype(np.uint8)
    groups = rng.integers(1, 0x7F, (32, 4)).astype(np.uint8)
    second = torch.tensor(0.0371)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = torch.from_numpy(np.stack([packed & 15, packed >> 4], -1).reshape(32, 64)).long()
    scales = torch.from_numpy(groups).view(torch.float8_e4m3fn).float() * second
    wanted = (table[codes].bfloat16().view(32, 4, 16) * scales.unsqueeze(-1)).view(32, 64).bfloat16()
    inputs = [
        ("U8", (32, 32), packed.tobytes()),
        ("F8_E4M3", (32, 4), groups.tobytes()),
        ("F32", (), second.numpy().tobytes()),
    ]
    [found] = Case("nvfp4_dequant", inputs, [("BF16", (32, 64))]).run()
    assert torch.equal(torch.frombuffer(bytearray(found), dtype=torch.bfloat16).view(32, 64), wanted)
    scales16 = torch.from_numpy(rng.random((32, 2)).astype(np.float32)).bfloat16()
    wanted = (codes - 8).bfloat16() * scales16.repeat_interleave(32, 1)
    inputs = [("I32", (32, 8), packed.tobytes()), ("BF16", (32, 2), scales16.view(torch.uint8).numpy().tobytes())]
    [found] = Case("int4_dequant", inputs, [("BF16", (32, 64))]).run()
    assert torch.equal(torch.frombuffer(bytearray(found), dtype=torch.bfloat16).view(32, 64), wanted)


def test_mxfp4_experts_as_transformers_reads_them() -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(4)
    blocks, scales = (
        rng.integers(0, 256, (3, 6, 4, 16)).astype(np.uint8),
        rng.integers(110, 140, (3, 6, 4)).astype(np.uint8),
    )
    wanted = convert_moe_packed_tensors(torch.from_numpy(blocks.copy()), torch.from_numpy(scales.copy()))
    inputs = [("U8", blocks.shape, blocks.tobytes()), ("U8", scales.shape, scales.tobytes())]
    [found] = Case("mxfp4_dequant+transpose", inputs, [("BF16", (3, 128, 6))]).run()
    assert torch.equal(torch.frombuffer(bytearray(found), dtype=torch.bfloat16).view(3, 128, 6), wanted)
