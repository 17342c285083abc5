# hidden state moved with .to(device=...)
import torch
from torch import nn


class ConvLSTM(nn.Module):
    def __init__(self, cell, hidden):
        super().__init__()
        self.cell = cell
        self.hidden = hidden

    def init_state(self, batch, height, width, device):
        return torch.zeros(batch, self.hidden, height, width, device=device)

    def forward(self, frames):
        b, t, _, h, w = frames.shape
        state = self.init_state(b, h, w, frames.device)
        memory = torch.zeros(b, self.hidden, h, w).to(device=frames.device)  # expect: copy-to-device-in-forward|tensor-made-in-forward
        for i in range(t):
            state, memory = self.cell(frames[:, i], state, memory)
        return state
