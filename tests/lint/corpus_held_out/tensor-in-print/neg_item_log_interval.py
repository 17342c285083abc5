# formatted every log_interval batches only
import logging

log = logging.getLogger("train")


def train(args, model, device, train_loader, optimizer, loss_fn, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data = data.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = loss_fn(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            log.info("Train Epoch: %d [%d]\tLoss: %s", epoch, batch_idx * len(data), loss)
            print(f"Loss: {loss.item():.6f}")
