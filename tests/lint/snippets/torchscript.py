# %%
if not torch.jit.is_scripting():
    f(x)

# %%
class A(torch.nn.Module):
    scale: torch.jit.Final[int]

    @torch.jit.ignore
    def f(self):
        pass

    @torch.jit.unused
    def g(self):
        pass

# %%
def f(x):
    if torch.jit.is_tracing():
        return x
    return torch.jit.annotate(int, x)

# %%
model = torch.compile(model)
program = torch.export.load(path)

# %%
import jax

f = jax.jit(f)
script(f)
trace(f)

# %%
y = isinstance(m, torch.jit.ScriptModule)

def run(m: torch.jit.ScriptModule):
    return m

# %%
x.trace()
torch.trace(x)

# %%
m = torch.jit.script(model)  # expect: torchscript

# %%
@torch.jit.script  # expect: torchscript
def f(x):
    return x

# %%
from torch import jit

m = jit.freeze(jit.trace(model, x))  # expect: torchscript

# %%
m = torch.jit.load('model.pt', map_location='cpu')  # expect: torchscript

# %%
from torch.jit import script as compile_

m = compile_(model)  # expect: torchscript

# %%
class A(torch.jit.ScriptModule):  # expect: torchscript
    pass

# %%
torch.jit.save(m, 'model.pt')  # expect: torchscript
