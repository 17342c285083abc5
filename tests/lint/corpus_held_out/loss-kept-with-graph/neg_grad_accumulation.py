# accumulation divides the loss, it does not keep it
def train(model, loader, optimizer, accumulate=4):
    for i, batch in enumerate(loader):
        loss = model(**batch).loss / accumulate
        loss.backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
