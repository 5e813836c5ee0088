"""Plan: how a model is laid out over a target's devices, and what each device then holds."""
