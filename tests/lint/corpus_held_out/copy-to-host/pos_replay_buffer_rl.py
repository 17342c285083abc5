# activations of every environment step are copied back
import numpy as np
import torch


def collect(actor, env, steps, device):
    storage = []
    obs = env.reset()
    for _ in range(steps):
        with torch.no_grad():
            x = torch.as_tensor(obs, dtype=torch.float32, device=device)
            action, value = actor(x)
        act = action.cpu().numpy()  # expect: copy-to-host
        next_obs, reward, done, _ = env.step(act)
        storage.append((obs, act, reward, done))
        obs = np.where(done[:, None], env.reset(), next_obs)
    return storage
