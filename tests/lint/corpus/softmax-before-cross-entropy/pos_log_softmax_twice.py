# cross_entropy of log-probabilities computes them twice
import torch
import torch.nn.functional as F


def language_model_loss(model, tokens, targets):
    scores = torch.log_softmax(model(tokens), dim=-1)
    return F.cross_entropy(scores.view(-1, scores.size(-1)), targets.view(-1))  # expect: softmax-before-cross-entropy
