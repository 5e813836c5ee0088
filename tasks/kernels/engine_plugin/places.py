"""Where vLLM has a place for a kernel, by what a kernel says that it replaces.

Imports nothing: the kernels stage reads it, and it is copied beside the plugin.
"""

#: `vllm_ir::NAME`: operators of the engine's IR. It ranks their providers, and the plugin is one.
IR = ("rms_norm", "fused_add_rms_norm")

_ACTIVATION = "vllm.model_executor.layers.activation"

#: `vllm::NAME`: layers, by module and class.
LAYERS = {
    "silu_and_mul": (_ACTIVATION, "SiluAndMul"),
    "gelu_and_mul": (_ACTIVATION, "GeluAndMul"),
    "swigluoai_and_mul": (_ACTIVATION, "SwigluOAIAndMul"),
    "silu_and_mul_with_clamp": (_ACTIVATION, "SiluAndMulWithClamp"),
    "rotary_embedding": ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbedding"),
}


def has_place(replaced: str) -> bool:
    """Whether the plugin can put a kernel in the place of this, of the engine's own operators and layers."""
    namespace, _, name = replaced.partition("::")
    return (namespace == "vllm_ir" and name in IR) or (namespace == "vllm" and name in LAYERS)
