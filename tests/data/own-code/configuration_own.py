"""A model type that no library knows."""

from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "day0_own"

    def __init__(self, hidden_size=64, num_hidden_layers=6, vocab_size=256, **kwargs):
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.vocab_size = vocab_size
        super().__init__(**kwargs)
