"""Accepted kernels in vLLM: a folder for the engine's PYTHONPATH, and the plugin in it that the engine loads."""
