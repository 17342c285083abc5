# through an alias
from torch import jit


def speed_up(model, example):
    return jit.trace(model.eval(), example)  # expect: torchscript
