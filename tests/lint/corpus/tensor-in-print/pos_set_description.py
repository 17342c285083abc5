# the f-string for the progress bar formats a device tensor in every step
from tqdm.auto import tqdm


def train(model, train_dataloader, optimizer, accelerator):
    progress = tqdm(train_dataloader)
    for batch in progress:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        progress.set_description(f"loss={loss:.4f}")  # expect: tensor-in-print
