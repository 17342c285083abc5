# functorch.vmap moved to torch.func
import functorch


def per_sample_gradients(loss, params, batch, targets):
    grad = functorch.grad(loss)  # expect: deprecated-function
    return functorch.vmap(grad, in_dims=(None, 0, 0))(params, batch, targets)  # expect: deprecated-function
