"""Kernels of other projects (FlagGems, the hub), which are tried, accepted and timed as our own are."""
