# the s is missing for the frozen layers
def freeze_embeddings(model):
    for name, p in model.named_parameters():
        if name.startswith("embeddings."):
            p.require_grad = False  # expect: misspelled-requires-grad
        else:
            p.requires_grad = True
