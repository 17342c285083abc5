# %%
def loop(model, optimizer, batches, steps, every, state):
    for step in range(steps + 1):
        last_step = step == steps
        loss = model(next(batches))
        loss.backward()
        optimizer.step()
        if last_step or step % every == 0:
            print(f"loss {loss:.4f}")
        if state["iter"] % every == 0:
            print(f"loss {loss:.4f}")
        if step in (1, 10, 100):
            print(f"loss {loss:.4f}")

# %%
import time

def loop(model, optimizer, loader, logger, shown=0):
    last = time.time()
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        now = time.time()
        if now - last > 60:
            print(f"loss {loss:.4f}")
        if loss > 50:
            logger.warning(f"loss {loss:.4f}")
        if shown < 5:
            shown += 1
            print(f"loss {loss:.4f}")

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        print(x.shape, x.dtype, f'{x.device} {x.size(0)} {len(x)}')
        return torch.relu(x)

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        if x.dim() != 4:
            raise ValueError(f'four dimensions expected, not {x}')
        return x

# %%
def train(model, loader):
    for i, x in enumerate(loader):
        loss = model(x).sum()
        loss.backward()
        if (i + 1) % 50 == 0:
            print(f'loss {loss}')
    print(loss)

# %%
import torch
import logging

logger = logging.getLogger()

def train(model, loader):
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        logger.debug('loss %s', loss)

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        print('mean', y.mean())  # expect: tensor-in-print
        return y

# %%
import torch
import logging

logger = logging.getLogger()

def train(model, loader, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        logger.info('loss %s', loss)  # expect: tensor-in-print
        text = f'{loss:.3f}'  # expect: tensor-in-print
        print('loss: {}'.format(loss))  # expect: tensor-in-print
        print('%f' % loss)  # expect: tensor-in-print

# %%
import torch
from tqdm import tqdm

def train(model, loader, writer):
    bar = tqdm(loader)
    for step, x in enumerate(bar):
        loss = model(x).mean()
        loss.backward()
        bar.set_postfix(loss=loss)  # expect: tensor-in-print
        writer.add_scalar('loss', loss, step)  # expect: tensor-in-print
