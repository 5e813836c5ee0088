"""What a model is: its config, its tensors, and what they cost, read without its weights."""
