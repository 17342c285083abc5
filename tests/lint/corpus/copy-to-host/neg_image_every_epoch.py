# a sample picture once in 500 steps
import torchvision.utils as vutils


def train(g, d, loader, opt_g, writer, noise):
    for step, real in enumerate(loader):
        opt_g.zero_grad()
        fake = g(noise)
        loss = -d(fake).mean()
        loss.backward()
        opt_g.step()
        if step % 500 == 0:
            grid = vutils.make_grid(fake.detach().cpu(), normalize=True)
            writer.add_image("fake", grid, step)
