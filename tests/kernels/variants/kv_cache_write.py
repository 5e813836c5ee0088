"""KV-cache write."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, Compute, Outputs, Variants, rounded

LARGEST = 448.0
FP8 = torch.float8_e4m3fn


def written(
    divide: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.div,
    to_code: Callable[[torch.Tensor], torch.Tensor] = lambda quotient: quotient.to(FP8),
    copy: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows,
    by: Callable[[torch.Tensor], torch.Tensor] = lambda scale: scale,
    short: int = 0,
    shift: int = 0,
) -> Compute:
    """The operator with one way of each of its steps; `short` numbers of each head are left, `shift` added to slots."""

    def run(
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
        key_scale: torch.Tensor | None,
        value_scale: torch.Tensor | None,
    ) -> Outputs:
        def one(new: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
            if scale is None:
                codes = copy(new)
            else:
                codes = to_code(divide(new.float(), by(scale).reshape(-1, 1)).clamp(-LARGEST, LARGEST))
            kept = slots >= 0
            where = (slots[kept] + shift) % (cache.shape[0] * cache.shape[1])
            result = cache.clone()
            raw = result.view(torch.uint8 if cache.dtype == FP8 else cache.dtype).flatten(0, 1)
            values = codes[kept].view(raw.dtype)
            raw[where, :, : values.shape[-1] - short] = values[..., : values.shape[-1] - short]
            return result

        return one(key, key_cache, key_scale), one(value, value_cache, value_scale)

    return run


def _without_last_bit(rows: torch.Tensor) -> torch.Tensor:
    whole = rows.contiguous().view({2: torch.int16, 4: torch.int32}[rows.dtype.itemsize])
    return (whole & ~1).view(rows.dtype)


VARIANTS = Variants(
    honest={
        "divided": (written(), ALL),
        "by the reciprocal": (written(divide=lambda x, by: x * (1 / by)), ALL),
        "by an approximate reciprocal": (written(divide=lambda x, by: x * arithmetic.reciprocal_approx(by)), ALL),
        "in float64": (written(divide=lambda x, by: x.double() / by.double()), ALL),
    },
    wrong={
        "codes cut toward zero": (written(to_code=lambda q: arithmetic.cut(q, FP8)), ALL),
        "quotients in bfloat16": (written(to_code=lambda q: q.to(torch.bfloat16).to(FP8)), ALL),
        "quotients in float16": (written(to_code=lambda q: q.to(torch.float16).to(FP8)), ALL),
        "scales in bfloat16": (written(by=lambda scale: rounded(scale, torch.bfloat16)), ALL),
        "scales in TF32": (written(by=lambda scale: arithmetic.coarse(scale, 10)), ALL),
        "the first head's scale for all": (written(by=lambda scale: scale[:1].expand_as(scale)), ALL),
        "multiplied by the scale": (written(divide=torch.mul), ALL),
        "copies cut by a bit": (written(copy=_without_last_bit), ALL),
        "copies in TF32": (written(copy=lambda rows: arithmetic.coarse(rows, 10)), ("float32",)),
        "the last number left": (written(short=1), ALL),
        "the next slot": (written(shift=1), ALL),
    },
)
