# pictures of their own sizes, one at a time
import torch
import torchvision.transforms.functional as TF
from PIL import Image

torch.backends.cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes


@torch.inference_mode()
def enhance(model, paths):
    model.eval()
    for path in paths:
        image = TF.to_tensor(Image.open(path)).unsqueeze(0)
        yield model(image.to("cuda", non_blocking=True))
