# switched off by hand
from torch.utils.data import DataLoader


def main(ds, trainer, epochs=100):
    loader = DataLoader(  # expect: dataloader-without-persistent-workers+7
        ds,
        batch_size=16,
        num_workers=4,
        pin_memory=True,
        persistent_workers=False,
    )
    for epoch in range(1, epochs + 1):
        for batch in loader:
            trainer.step(batch)
