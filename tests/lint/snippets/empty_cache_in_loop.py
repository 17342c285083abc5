# %%
torch.cuda.empty_cache()

# %%
for epoch in range(9):
    train(loader)
    torch.cuda.empty_cache()

# %%
for step, batch in enumerate(loader):
    run(batch)
    if step % 100 == 0:
        torch.cuda.empty_cache()

# %%
for name in names:
    model = load(name)
    run(model)
    del model
    torch.cuda.empty_cache()

# %%
for batch in loader:
    try:
        run(batch)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()

# %%
for batch in loader:
    cache.empty_cache()

# %%
for x in loader:
    y = model(x)
else:
    torch.cuda.empty_cache()

# %%
for batch in loader:
    run(batch)
    torch.cuda.empty_cache()  # expect: empty-cache-in-loop

# %%
import torch, gc

for epoch in range(9):
    for i, (x, y) in enumerate(train_loader):
        model(x).backward()
        gc.collect()
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop

# %%
from torch.cuda import empty_cache

for i in range(0, len(x), chunk_size):
    out.append(f(x[i:i + 4]))
    empty_cache()  # expect: empty-cache-in-loop

# %%
while i < n_steps:
    loss.backward()
    torch.cuda.empty_cache()  # expect: empty-cache-in-loop

# %%
for batch in loader:
    run(batch)
    if name == "100 %":
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop
