# %%
import os, torch

torch.set_num_threads(os.cpu_count())  # expect: threads-of-whole-machine

# %%
import os
from torch.utils.data import DataLoader

loader = DataLoader(dataset, batch_size=64, num_workers=os.cpu_count())  # expect: threads-of-whole-machine

# %%
from multiprocessing import cpu_count
from torch.utils.data import DataLoader

loader = DataLoader(dataset, 64, True, None, None, cpu_count() - 1)  # expect: threads-of-whole-machine

# %%
import os, torch
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(os.cpu_count()) as pool:  # expect: threads-of-whole-machine
    pool.map(model, batches)

# %%
import multiprocessing as mp
import torch

workers = mp.cpu_count() // 2
pool = mp.Pool(processes=workers)  # expect: threads-of-whole-machine

# %%
import os

os.environ["OMP_NUM_THREADS"] = str(os.cpu_count())  # expect: threads-of-whole-machine
import torch

# %%
import os

os.environ.setdefault("MKL_NUM_THREADS", f"{os.cpu_count()}")  # expect: threads-of-whole-machine
import torch

# %%
import os
import onnxruntime, torch

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = os.cpu_count() or 1  # expect: threads-of-whole-machine

# %%
import os
import torch


class Server:
    def __init__(self):
        self.threads = max(1, os.cpu_count() - 2)

    def start(self):
        torch.set_num_threads(self.threads)  # expect: threads-of-whole-machine

# %%
import psutil
import torch.multiprocessing as mp

mp.spawn(train, (8,), psutil.cpu_count(logical=False))  # expect: threads-of-whole-machine

# %%
import os, torch

torch.set_num_threads(min(8, os.cpu_count()))

# %%
import os
from torch.utils.data import DataLoader

loader = DataLoader(dataset, num_workers=len(os.sched_getaffinity(0)))
other = DataLoader(dataset, num_workers=args.workers or os.cpu_count())

# %%
import os, torch

threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
torch.set_num_threads(threads)

# %%
import os, torch

torch.set_num_threads(os.process_cpu_count())
print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads")

# %%
import os, torch

workers = os.cpu_count()
workers = int(os.environ["WORKERS"])
torch.set_num_threads(workers)

# %%
from concurrent.futures import ThreadPoolExecutor
import torch
from .machine import cpu_count

with ThreadPoolExecutor(cpu_count()) as pool:
    pool.map(model, batches)

# %%
import os
from joblib import Parallel, cpu_count
import torch


class Loader:
    def __init__(self, workers=None):
        self.workers = workers
        self.workers = os.cpu_count()

    def run(self):
        Parallel(n_jobs=cpu_count())
        torch.set_num_threads(self.workers)
