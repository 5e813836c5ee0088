"""Reshard: split a checkpoint into the files that each rank of an engine loads."""
