# soft update of a target network
import torch


class Agent:
    def __init__(self, online, target):
        self.online, self.target, self.tau = online, target, 0.005

    def soft_update(self):
        for target, source in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.copy_(self.tau * source + (1.0 - self.tau) * target)  # expect: average-records-graph
