"""Names and sizes of the dtypes that weights and caches are held in."""

from __future__ import annotations

from day0.errors import InputError

#: Bytes of one element, by the name that torch and the engines use.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

#: A form of latent caches that mixes widths (vLLM): the layer says how many bytes an entry has.
PACKED_LATENT = "fp8_ds_mla"

WEIGHT_DTYPES = ("bfloat16", "float16", "float32")
KV_DTYPES = (*BYTES, PACKED_LATENT)

_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}

#: The names of the safetensors format.
SAFETENSORS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def full_name(text: str) -> str:
    """A dtype's name written out, such as `bfloat16` for `bf16`; what is no short form comes back in lower case."""
    return _SHORT.get(text.lower(), text.lower())


def dtype_name(text: str, allowed: tuple[str, ...], what: str) -> str:
    """The full name of a dtype that a person wrote, such as `bf16`.

    Raises:
        InputError: it is none of the allowed ones.
    """
    name = full_name(text)
    if name not in allowed:
        raise InputError(f"{what} {text!r} is not known; choose one of {', '.join(allowed)}")
    return name
