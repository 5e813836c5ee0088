"""A model of linear layers and sines, as a release ships it: with a cache by its older name."""

import socket
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_own import OwnConfig


class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = torch.nn.Linear(size, 3 * size)
        self.down = torch.nn.Linear(3 * size, size)

    def forward(self, hidden):
        return hidden + self.down(torch.sin(self.up(hidden)))


class OwnForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(Layer(config.hidden_size) for _ in range(config.num_hidden_layers))
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()
        # What code that is not trusted could try: it has no network, and finds nothing that it may write to.
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError as error:
            self.reached = type(error).__name__
        for place in ("/day0/day0/owned", "/code/owned", "/owned"):
            try:
                Path(place).write_text("owned")
            except OSError:
                continue
            raise SystemExit(f"{place} could be written")

    def forward(self, input_ids, past_key_values=None, use_cache=None, **kwargs):
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return CausalLMOutputWithPast(logits=self.head(hidden), past_key_values=past_key_values)
