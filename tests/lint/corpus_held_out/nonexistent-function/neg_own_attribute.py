# set by the program itself
import torch

torch.my_flag = True
torch.nn.Swish = torch.nn.SiLU


def layer():
    return torch.nn.Swish(), torch.my_flag
