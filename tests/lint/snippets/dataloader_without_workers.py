# %%
from torch.utils.data import DataLoader

l = DataLoader(d, num_workers=4)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, 8, True, None, None, n)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, num_workers=args.workers)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, **options)

# %%
from torch.utils.data import DataLoader, TensorDataset

d = TensorDataset(x, y)
l = DataLoader(d, 64)

# %%
from torch.utils.data import DataLoader

l = DataLoader([1, 2, 3], batch_size=2)

# %%
from torch_geometric.loader import DataLoader

l = DataLoader(graphs, batch_size=2)

# %%
from torch.utils.data import DataLoader

def f(l: DataLoader):
    return isinstance(l, DataLoader)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, batch_size=64)  # expect: dataloader-without-workers

# %%
l = torch.utils.data.DataLoader(  # expect: dataloader-without-workers
    d,
    batch_size=64,
    num_workers=0,
)

# %%
from torch.utils import data

l = data.DataLoader(  # expect: dataloader-without-workers
    d,
    shuffle=True,
)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, 8, True, None, None, 0)  # expect: dataloader-without-workers
