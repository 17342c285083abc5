# a captured graph needs the same gradient memory at each replay
import torch


def capture(model, static_x, static_y, optimizer, criterion):
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = criterion(model(static_x), static_y)
        loss.backward()
        optimizer.step()
    return graph
