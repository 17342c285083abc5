# a softmax inside of the model is no softmax of its result
import torch
import torch.nn.functional as F


def attend(query, key, value, head, y):
    weights = torch.softmax(query @ key.mT, dim=-1)
    out = head(weights @ value)
    return F.cross_entropy(out, y)
