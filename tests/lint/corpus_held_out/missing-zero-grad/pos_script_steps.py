# a fit of a curve at the top of a script
import torch

x = torch.linspace(-3, 3, 2000)
y = torch.sin(x)
weights = torch.randn(4, requires_grad=True)
optimizer = torch.optim.RMSprop([weights], lr=1e-3)
for _ in range(2000):
    prediction = weights[0] + weights[1] * x + weights[2] * x**2 + weights[3] * x**3
    loss = (prediction - y).pow(2).sum()
    loss.backward()
    optimizer.step()  # expect: missing-zero-grad
