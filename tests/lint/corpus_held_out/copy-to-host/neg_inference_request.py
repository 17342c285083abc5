# one request, one answer: the copy is the purpose
import io

import torch
from fastapi import FastAPI, UploadFile
from PIL import Image
from torchvision.models import ResNet18_Weights, resnet18

app = FastAPI()
weights = ResNet18_Weights.DEFAULT
model = resnet18(weights=weights).eval().to("cuda")
transform = weights.transforms()


@app.post("/classify")
async def classify(file: UploadFile):
    image = Image.open(io.BytesIO(await file.read())).convert("RGB")
    with torch.inference_mode():
        scores = model(transform(image).unsqueeze(0).to("cuda")).softmax(-1)
    return {"label": int(scores.argmax()), "scores": scores.cpu().tolist()}
