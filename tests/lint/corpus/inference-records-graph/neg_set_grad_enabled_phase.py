# train and validation share the loop; the phase decides
import torch


def fit(model, loaders, criterion, optimizer, epochs):
    for _ in range(epochs):
        for phase in ("train", "val"):
            model.train(phase == "train")
            for x, y in loaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = criterion(model(x), y)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
