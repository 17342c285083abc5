# two histories of a GAN keep both graphs
import torch
from torch import nn


def train_gan(g, d, loader, opt_g, opt_d, device):
    bce = nn.BCEWithLogitsLoss()
    g_losses, d_losses = [], []
    for real in loader:
        noise = torch.randn(real.size(0), 128, device=device)
        opt_d.zero_grad()
        score = d(real)
        d_loss = bce(score, torch.ones_like(score)) + bce(d(g(noise).detach()), torch.zeros_like(score))
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        g_loss = bce(d(g(noise)), torch.ones_like(score))
        g_loss.backward()
        opt_g.step()
        g_losses.append(g_loss)  # expect: loss-kept-with-graph
        d_losses += [d_loss]  # expect: loss-kept-with-graph
    return g_losses, d_losses
