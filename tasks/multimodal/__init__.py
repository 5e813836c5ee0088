"""Multimodal: whether the image path of a model that sees works."""
