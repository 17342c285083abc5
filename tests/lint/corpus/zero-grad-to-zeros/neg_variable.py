# the caller decides
class Wrapped:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def zero_grad(self, set_to_none: bool = True):
        self.optimizer.zero_grad(set_to_none=set_to_none)
