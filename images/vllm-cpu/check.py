"""Run inside a newly made environment: ends with code 1 and one sentence if it cannot serve."""

import sys

import torch
import torch.utils.cpp_extension

if torch.version.cuda is not None:
    sys.exit(
        f"torch {torch.__version__} is a build for CUDA: point DAY0_TORCH_INDEX (or pip's own settings) "
        "at an index or a folder that has the build for the CPU"
    )

try:
    # What the server and its worker import, so that a package that the lock file lacks is found here.
    import vllm.entrypoints.openai.api_server
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm.platforms import current_platform
except ImportError as error:
    sys.exit(f"vLLM cannot be imported: {error}; its extension modules need the system's libnuma1 and libstdc++6")

if not current_platform.is_cpu():
    sys.exit(f"vLLM did not recognise the CPU as its platform, but {current_platform.device_name!r}")
print(f"torch {torch.__version__}, vLLM on {current_platform.device_name}")
