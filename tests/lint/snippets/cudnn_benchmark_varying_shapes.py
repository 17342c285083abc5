# %%
import random
import torch
from torchvision import transforms

opt = parser.parse_args()
opt.seed = random.randint(1, 10000)
torch.backends.cudnn.benchmark = True
transform = transforms.Compose([transforms.Resize(opt.imageSize), transforms.ToTensor()])

# %%
torch.backends.cudnn.benchmark = True

# %%
import torch, random
import torch.nn.functional as F

torch.backends.cudnn.benchmark = False
s = random.choice(sizes)
x = F.interpolate(x, size=s)

# %%
import torch
from torchvision import transforms as T

torch.backends.cudnn.benchmark = True
t = T.Compose([T.RandomResizedCrop(224), T.ToTensor()])

# %%
import torch
from torchvision.transforms import v2

torch.backends.cudnn.benchmark = True
t = v2.Compose([v2.RandomResize(256, 512), v2.RandomCrop(224)])

# %%
import torch, random
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True
random.seed(0)
x = F.interpolate(x, size=(224, 224))

# %%
import torch
from torch.nn.utils.rnn import pad_sequence

torch.backends.cudnn.benchmark = True

def collate(batch):
    return pad_sequence(batch)

net = torch.nn.TransformerEncoder(layer, 6)

# %%
import random
import torch
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes

def train(opt, loader):
    for x in loader:
        opt.size = random.randint(100, 200)
        x = F.interpolate(x, size=(opt.size, opt.size))

# %%
import torch, random
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes

for x in loader:
    s = random.randint(10, 20) * 32
    x = F.interpolate(x, size=(s, s))

# %%
import torch.backends.cudnn as cudnn
import torchvision

cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes
net = torchvision.models.detection.fasterrcnn_resnet50_fpn()

# %%
import torch
from torchvision.transforms import v2

torch.backends.cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes
t = v2.Compose([v2.RandomShortestSize(range(480, 800, 32)), v2.ToImage()])

# %%
import torch
from torch.nn.utils.rnn import pad_sequence

torch.backends.cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes

def collate(batch):
    return pad_sequence(batch)

net = torch.nn.Conv1d(80, 256, 5)
