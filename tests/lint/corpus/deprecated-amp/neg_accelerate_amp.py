# accelerate and Lightning keep their own autocast
import lightning as L
from accelerate import Accelerator


def run(model, loader, optimizer):
    accelerator = Accelerator(mixed_precision="bf16")
    trainer = L.Trainer(precision="bf16-mixed", max_epochs=1)
    for batch in loader:
        with accelerator.autocast():
            loss = model(batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return trainer
