# a new attribute, the parameter still trains
import torchvision


def freeze():
    model = torchvision.models.resnet18(weights="DEFAULT")
    for parameter in model.parameters():
        parameter.require_grad = False  # expect: misspelled-requires-grad
    return model
