# both optimizers of a GAN
import torch


def gan_step(g, d, real, noise, criterion):
    opt_g = torch.optim.Adam(g.parameters(), 2e-4)
    opt_d = torch.optim.Adam(d.parameters(), 2e-4)
    opt_d.zero_grad(set_to_none=False)  # expect: zero-grad-to-zeros
    criterion(d(real), d(g(noise).detach())).backward()
    opt_d.step()
    opt_g.zero_grad(set_to_none=False)  # expect: zero-grad-to-zeros
    (-d(g(noise)).mean()).backward()
    opt_g.step()
