"""Operators: what a model calls in prefill and decode, what each call costs, and whether the target has it."""
