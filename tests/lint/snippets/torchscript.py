"""Snippets of the rule ``torchscript``."""

valid = (
    """
    if not torch.jit.is_scripting():
        f(x)
    """,
    """
    class A(torch.nn.Module):
        scale: torch.jit.Final[int]

        @torch.jit.ignore
        def f(self):
            pass

        @torch.jit.unused
        def g(self):
            pass
    """,
    """
    def f(x):
        if torch.jit.is_tracing():
            return x
        return torch.jit.annotate(int, x)
    """,
    """
    model = torch.compile(model)
    program = torch.export.load(path)
    """,
    """
    import jax

    f = jax.jit(f)
    script(f)
    trace(f)
    """,
    """
    y = isinstance(m, torch.jit.ScriptModule)

    def run(m: torch.jit.ScriptModule):
        return m
    """,
    """
    x.trace()
    torch.trace(x)
    """,
)
invalid = (
    "m = torch.jit.script(model)  # here",
    """
    @torch.jit.script  # here
    def f(x):
        return x
    """,
    """
    from torch import jit

    m = jit.freeze(jit.trace(model, x))  # here
    """,
    "m = torch.jit.load('model.pt', map_location='cpu')  # here",
    """
    from torch.jit import script as compile_

    m = compile_(model)  # here
    """,
    """
    class A(torch.jit.ScriptModule):  # here
        pass
    """,
    "torch.jit.save(m, 'model.pt')  # here",
)
