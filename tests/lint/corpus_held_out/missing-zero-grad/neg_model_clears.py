# module.zero_grad() does it too
import torch


def fit(net, data, objective):
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for sample in data:
        net.zero_grad(set_to_none=True)
        objective(net(sample)).backward()
        opt.step()
