# what moves is the model, once per fold
import torch


def cross_validate(make_model, folds, fit, device):
    scores = []
    for fold in folds:
        model = make_model()
        model = model.to(device)
        scores.append(fit(model, fold))
    return scores
