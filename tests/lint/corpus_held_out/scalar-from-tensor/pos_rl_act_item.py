# reinforcement learning: an action is pulled to the host at each environment step
import torch
from torch.distributions import Categorical


def rollout(policy, env, steps: int, device: torch.device):
    obs = env.reset()
    actions = []
    for _ in range(steps):
        with torch.no_grad():
            logits = policy(torch.as_tensor(obs, device=device))
        action = Categorical(logits=logits).sample()
        a = action.item()  # expect: scalar-from-tensor
        actions.append(a)
        obs, reward, done, info = env.step(a)
    return actions
