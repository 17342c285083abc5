# JAX
import jax
import jax.numpy as jnp


@jax.jit
def predict(params, x):
    return jnp.tanh(x @ params)


def trace(x):
    return jax.make_jaxpr(predict)(x, x)
