# hidden state made on the CPU, then .cuda()
import torch
import torch.nn as nn


class LSTMTagger(nn.Module):
    def __init__(self, dim, hidden, tags):
        super().__init__()
        self.hidden = hidden
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, tags)

    def forward(self, x):
        h0 = torch.zeros(1, x.size(0), self.hidden).cuda()  # expect: copy-to-device-in-forward|tensor-made-in-forward
        c0 = torch.zeros(1, x.size(0), self.hidden).cuda()  # expect: copy-to-device-in-forward|tensor-made-in-forward
        y, _ = self.lstm(x, (h0, c0))
        return self.out(y)
