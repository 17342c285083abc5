# Lightning's hooks
import lightning as L
from torch.utils.data import DataLoader
from torchvision.datasets import Food101


class Food(L.LightningDataModule):
    def setup(self, stage):
        self.train_set = Food101("data", split="train")
        self.test_set = Food101("data", split="test")

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=64, shuffle=True, pin_memory=True)  # expect: dataloader-without-workers

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=64, num_workers=4, pin_memory=True, persistent_workers=True)
