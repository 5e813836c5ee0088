"""Smoke: whether the served model answers as the reference does."""
