"""The shared vocabulary."""
