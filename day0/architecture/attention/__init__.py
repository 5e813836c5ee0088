"""Kinds of attention: what a layer caches, how ranks share it, what its core computes and reads. One class each."""
