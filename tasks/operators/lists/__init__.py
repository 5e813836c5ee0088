"""Operator lists: what vendors publish about their operators, read from their files and kept as dated data."""
