# an inference worker answers requests for ever, recording each time
import queue

import timm
import torch

requests: queue.Queue = queue.Queue()


def serve():
    model = timm.create_model("vit_small_patch16_224", pretrained=True)
    model = model.eval().to("cuda")
    while True:  # expect: inference-records-graph+2
        image, reply = requests.get()
        scores = model(image.to("cuda", non_blocking=True)).softmax(-1)
        reply.put(scores.topk(5).indices)
