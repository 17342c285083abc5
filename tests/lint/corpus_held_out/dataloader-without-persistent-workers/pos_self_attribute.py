# made in the constructor, used in each epoch
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, dataset, model):
        self.model = model
        self.loader = DataLoader(dataset, 32, num_workers=4, pin_memory=True)  # expect: dataloader-without-persistent-workers

    def fit(self, epochs, step):
        for epoch in range(epochs):
            for batch in self.loader:
                step(self.model, batch)
