"""Acceptance: a kernel is proven right in a process of its own, or rejected with the reason."""
