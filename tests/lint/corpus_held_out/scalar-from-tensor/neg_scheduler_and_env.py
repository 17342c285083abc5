# the numbers of a gym environment and of the scheduler
import gymnasium as gym
import numpy as np


def random_return(seed: int, episodes: int) -> list[float]:
    env = gym.make("CartPole-v1")
    returns = []
    for episode in range(episodes):
        obs, info = env.reset(seed=seed + episode)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
            total += float(reward)
            done = bool(terminated or truncated)
        returns.append(np.float64(total).item())
    return returns
