# HF-style flags, tuples and None
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(nn.Linear(config.dim, config.dim) for _ in range(config.layers))

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None, use_cache=None, return_dict=None):
        use_cache = use_cache if use_cache is not None else self.config.use_cache
        if (input_ids is None) ^ (inputs_embeds is not None):
            raise ValueError("one of input_ids and inputs_embeds")
        hidden = inputs_embeds
        states = () if self.config.output_hidden_states else None
        for layer in self.layers:
            if states is not None:
                states = states + (hidden,)
            hidden = layer(hidden)
            if isinstance(hidden, tuple):
                hidden = hidden[0]
        if not return_dict:
            return tuple(v for v in (hidden, states) if v is not None)
        return {"hidden": hidden, "states": states, "cache": bool(use_cache)}
