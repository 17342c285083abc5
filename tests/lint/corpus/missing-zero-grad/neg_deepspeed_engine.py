# the engine steps and clears
import deepspeed


def train(model, arguments, loader):
    engine, _, _, _ = deepspeed.initialize(model=model, args=arguments)
    for x, y in loader:
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
