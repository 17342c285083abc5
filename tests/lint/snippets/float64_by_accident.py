# %%
class A(torch.nn.Module):
    def forward(self, x):
        weight = torch.ones(3, dtype=torch.float64, device=x.device)
        return x * weight

# %%
import numpy as np
import torch

x = torch.from_numpy(np.random.randn(3)).float()

# %%
import numpy as np
import torch

x = torch.from_numpy(np.random.randn(3).astype(np.float32))

# %%
import numpy as np
import torch

x = torch.tensor(np.zeros(3), dtype=torch.float32)

# %%
import numpy as np
import torch

x = torch.from_numpy(np.zeros(3, dtype=np.int64))

# %%
import numpy as np
import torch

x = torch.from_numpy(np.zeros(3))
y = model(x.to(torch.float32))

# %%
x = torch.tensor([0.5, 1.5])

# %%
import numpy as np
import torch

def f(a):
    return torch.from_numpy(a)

# %%
class A(torch.nn.Module):
    def forward(self, x):
        freqs = torch.outer(self.position.double(), self.inv_freq)
        y = x.double().sum().float()
        return y

# %%
torch.set_default_dtype(torch.bfloat16)

# %%
torch.set_default_dtype(torch.float64)
torch.autograd.gradcheck(f, x)

# %%
import numpy as np
import torch

lr = torch.tensor(np.random.uniform(0.1, 0.2))

# %%
import numpy as np
import torch

x = torch.from_numpy(np.random.rand(3, 4))  # expect: float64-by-accident

# %%
import numpy as np
import torch

a = np.linspace(0, 1, 9)
x = torch.tensor(a, device='cuda')  # expect: float64-by-accident

# %%
import cv2
import torch

image = cv2.imread(path)
x = torch.from_numpy(image / 255.0)  # expect: float64-by-accident

# %%
torch.set_default_dtype(torch.float64)  # expect: float64-by-accident

# %%
class A(torch.nn.Module):
    def forward(self, x):
        x = torch.relu(x)
        return self.body(x.double())  # expect: float64-by-accident

# %%
import numpy as np
import torch

x = torch.as_tensor(np.array([0.5, 1.5]))  # expect: float64-by-accident

# %%
y = torch.zeros(3, dtype=float)  # expect: float64-by-accident

# %%
import numpy as np
import torch
from PIL import Image

picture = np.array(Image.open(path).convert('RGB')) / 255.0
x = torch.from_numpy(picture)  # expect: float64-by-accident

# %%
import numpy as np
import torch

class Points:
    def __init__(self, n):
        self.points = np.random.normal(size=(n, 3))

    def __getitem__(self, i):
        return torch.from_numpy(np.stack([self.points[i], -self.points[i]]))  # expect: float64-by-accident

# %%
# not for gradcheck
torch.set_default_dtype(torch.float64)  # expect: float64-by-accident

# %%
class A(torch.nn.Module):
    def forward(self, x):
        print("then .to(dtype)")
        return self.body(torch.relu(x).double())  # expect: float64-by-accident
