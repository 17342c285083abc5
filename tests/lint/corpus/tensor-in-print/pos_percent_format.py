# %-formatting a tensor in each batch
import torch


def train(disc, gen, loader, opt_d, opt_g, bce, z_dim, device):
    for i, real in enumerate(loader):
        z = torch.randn(real.size(0), z_dim, device=device)
        errD = bce(disc(real), torch.ones(real.size(0), device=device))
        opt_d.zero_grad()
        errD.backward()
        opt_d.step()
        errG = bce(disc(gen(z)), torch.ones(real.size(0), device=device))
        opt_g.zero_grad()
        errG.backward()
        opt_g.step()
        print("[%d/%d] D %.4f G %.4f" % (i, len(loader), errD, errG))  # expect: tensor-in-print
