"""Pieces of real models: routing, generation, recurrence."""

import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import togi


def _seeded(module):
    torch.manual_seed(0)
    return module


def experts_by_loop():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            choice = self.gate(x).argmax(-1)
            out = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                rows = torch.where(choice == index)[0]  # sync
                out.index_add_(0, rows, expert(x[rows]))
            return out

    return togi.Subject(_seeded(Experts()), torch.randn(6, 4))


def experts_densely():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)
            self.weight = nn.Parameter(torch.randn(3, 4, 4))

        def forward(self, x):
            weights = self.gate(x).softmax(-1)
            return torch.einsum("bi,eio,be->bo", x, self.weight, weights)

    return togi.Subject(_seeded(Experts()), torch.randn(6, 4))


def generation_until_all_ended():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 8)

        def forward(self, tokens):
            ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
            for _ in range(3):
                following = self.head(self.embed(tokens[:, -1])).argmax(-1)
                tokens = torch.cat([tokens, following[:, None]], dim=1)
                ended = ended | (following == 9)
                if ended.all():  # sync
                    break
            return tokens

    return togi.Subject(_seeded(Decoder()), torch.ones(2, 3, dtype=torch.long))


def generation_of_fixed_length():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 8)

        def forward(self, tokens):
            for _ in range(3):
                following = self.head(self.embed(tokens[:, -1])).argmax(-1)
                tokens = torch.cat([tokens, following[:, None]], dim=1)
            return tokens

    return togi.Subject(_seeded(Decoder()), torch.ones(2, 3, dtype=torch.long))


def recurrent():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 8, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.lstm(x)[0]

    return togi.Subject(_seeded(Tagger()), torch.randn(2, 5, 4))


def packed_sequences():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(4, 8, batch_first=True)

        def forward(self, x):
            packed = pack_padded_sequence(x, [5, 3], batch_first=True)
            out, _ = self.gru(packed)
            return pad_packed_sequence(out, batch_first=True)[0]

    return togi.Subject(_seeded(Tagger()), torch.randn(2, 5, 4))


def encoder_layer():
    torch.manual_seed(0)
    return togi.Subject(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 5, 8))


def attention_with_padding():
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
            return self.attention(x, x, x, key_padding_mask=padding)[0]

    return togi.Subject(_seeded(Attend()).train(), torch.randn(2, 5, 8))


def positions_by_mask():
    class Positions(nn.Module):
        def forward(self, x):
            mask = x[..., 0] > 0
            positions = mask.long().cumsum(-1) - 1
            return F.embedding(positions.clamp(min=0), torch.eye(8, device=x.device))

    return togi.Subject(Positions(), torch.randn(2, 5, 8))


def normal_distribution():
    class Sample(nn.Module):
        def forward(self, x):
            distribution = torch.distributions.Normal(x, torch.ones_like(x), validate_args=True)  # sync
            return distribution.rsample()

    return togi.Subject(Sample(), torch.randn(2, 5))


def unchecked_distribution():
    class Sample(nn.Module):
        def forward(self, x):
            distribution = torch.distributions.Normal(x, torch.ones_like(x), validate_args=False)
            return distribution.rsample()

    return togi.Subject(Sample(), torch.randn(2, 5))


def connectionist_loss():
    class Loss(nn.Module):
        def forward(self, x):
            lengths = torch.full((2,), 5, device=x.device)
            targets = torch.ones(2, 2, dtype=torch.long, device=x.device)
            return F.ctc_loss(x.log_softmax(-1), targets, lengths, lengths - 3)  # sync

    return togi.Subject(Loss(), torch.randn(5, 2, 4))


def scripted_part():
    @torch.jit.script
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + x.mean()

    class Part(nn.Module):
        def forward(self, x):
            return scale(x)

    return togi.Subject(Part(), torch.randn(2, 5))


def compiled_part():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 5)
            self.scale = torch.compile(lambda x: x * 2 + 1, backend="eager")

        def forward(self, x):
            y = self.scale(self.linear(x))
            return y / y.max().item()  # sync

    return togi.Subject(_seeded(Part()), torch.randn(2, 5))


def in_a_thread():
    class Threaded(nn.Module):
        def forward(self, x):
            def work():
                results.append(x.sum().item())  # sync

            results = []
            worker = threading.Thread(target=work)
            worker.start()
            worker.join()
            return x * results[0]

    return togi.Subject(Threaded(), torch.randn(2, 5))


def under_inference_mode():
    class Inference(nn.Module):
        def forward(self, x):
            with torch.inference_mode():
                y = x * 2
                return y[y.sum(-1) > 0]  # sync

    return togi.Subject(Inference(), torch.randn(2, 5))


def mapped_over_a_batch():
    class Mapped(nn.Module):
        def forward(self, x):
            return torch.vmap(lambda row: row * row.sum())(x)

    return togi.Subject(Mapped(), torch.randn(2, 5))


def composites_under_inference_mode():
    class Inference(nn.Module):
        def forward(self, x):
            with torch.inference_mode():
                rows = torch.where(x.sum(-1) > 0)[0]  # sync
                scale = x.max().item()  # sync
                y = F.linear(x, torch.eye(5, device=x.device)).reshape(-1)
                if torch.allclose(y, x.reshape(-1)):  # sync
                    y = y * scale
                return y, rows, F.one_hot(x.argmax(-1), num_classes=5)

    return togi.Subject(Inference(), torch.randn(2, 5))


@torch.library.custom_op("togi_programs::scaled", mutates_args=())
def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.max().item()


def operator_written_in_python():
    class Custom(nn.Module):
        def forward(self, x):
            return torch.ops.togi_programs.scaled(x)  # sync

    return togi.Subject(Custom(), torch.randn(2, 5))
