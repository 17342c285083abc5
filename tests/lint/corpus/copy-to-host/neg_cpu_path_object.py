# `.cpu` and `.numpy` of things that are no tensors
class Node:
    def __init__(self, cluster):
        self.cluster = cluster

    def cpu(self):
        return self.cluster.cores


def schedule(nodes, jobs):
    for job in jobs:
        for node in nodes:
            if node.cpu() >= job.cores:
                job.assign(node)
                break
