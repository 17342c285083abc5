# %%
optimizer.zero_grad()

# %%
optimizer.zero_grad(set_to_none=True)

# %%
optimizer.zero_grad(set_to_none=flag)

# %%
for buffer in buffers:
    buffer.zero_()

# %%
for p in model.parameters():
    p.grad[mask].zero_()

# %%
x.grad.zero_()

# %%
for p in model.parameters():
    p.grad = None

# %%
optimizer.zero_grad(set_to_none=False)  # expect: zero-grad-to-zeros

# %%
model.zero_grad(False)  # expect: zero-grad-to-zeros

# %%
for p in model.parameters():
    if p.grad is not None:
        p.grad.zero_()  # expect: zero-grad-to-zeros

# %%
for group in optimizer.param_groups:
    for p in group['params']:
        p.grad.data.zero_()  # expect: zero-grad-to-zeros

# %%
while True:
    step()
    with torch.no_grad():
        w.grad.zero_()  # expect: zero-grad-to-zeros
