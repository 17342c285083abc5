# %%
p.requires_grad = False

# %%
require_grad = False
f(require_grad=True)
if p.require_grad:
    pass

# %%
class A:
    def __init__(self, require_grad):
        self.require_grad = require_grad

# %%
import shapes

p.require_grad = False

# %%
for p in model.parameters():
    p.require_grad = False  # expect: misspelled-requires-grad

# %%
model.fc.weight.require_grad, x = True, 1  # expect: misspelled-requires-grad
