"""Profile: what a model is and costs, from its config and tensor headers."""
