# CLIP scores a folder of pictures, recording
import torch
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

model = CLIPModel.from_pretrained("openai/clip-vit-base-patch32").to("cuda")
processor = CLIPProcessor.from_pretrained("openai/clip-vit-base-patch32")


def search(paths: list[str], text: str):
    scores = []
    for path in paths:  # expect: inference-records-graph+2
        inputs = processor(text=[text], images=Image.open(path), return_tensors="pt").to("cuda")
        scores.append(model(**inputs).logits_per_image)  # allow: loss-kept-with-graph
    return torch.cat(scores).topk(5, dim=0).indices


search(["a.jpg"], "a cat")
