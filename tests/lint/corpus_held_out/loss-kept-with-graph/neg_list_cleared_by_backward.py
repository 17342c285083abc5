# policy losses are collected, then summed and differentiated
import torch


def finish_episode(policy, env, optimizer, select_action, returns):
    log_probs = []
    state = env.reset()
    for _ in range(1000):
        action, log_prob = select_action(policy, state)
        log_probs.append(log_prob)
        state, reward, done, _ = env.step(action)
        if done:
            break
    loss = -(torch.stack(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
