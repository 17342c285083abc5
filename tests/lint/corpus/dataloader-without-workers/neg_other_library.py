# another library's DataLoader
from dgl.dataloading import DataLoader
from strawberry.dataloader import DataLoader as GraphQLLoader


def build(graph, ids, sampler, load):
    return DataLoader(graph, ids, sampler, batch_size=1024), GraphQLLoader(load_fn=load)
