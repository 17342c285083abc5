# a function that saves to disk
from training.io import checkpoint


def train(steps, state):
    for step in range(steps):
        state = state.next()
        if step % 1000 == 0:
            checkpoint(state, step)
