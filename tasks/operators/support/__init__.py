"""Whether a target has an operator: by what was measured, what is registered, and what its vendor lists."""
