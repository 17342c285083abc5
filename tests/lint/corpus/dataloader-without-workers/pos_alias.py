# import torch.utils.data as data
import torch.utils.data as data


def build(dataset, collate):
    loader = data.DataLoader(dataset, batch_size=4, collate_fn=collate, pin_memory=True)  # expect: dataloader-without-workers
    return loader
