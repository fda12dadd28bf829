"""Torsos."""

import flax.linen as nn, jax, jax.numpy as jnp

fan_in_uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class MLP(nn.Module):
    hidden_sizes: tuple = (64, 64)
    activation: object = nn.relu

    @nn.compact
    def __call__(self, observation):
        leaves = [
            x.reshape(x.shape[0], -1).astype(jnp.float32)
            for x in jax.tree.leaves(observation)
        ]
        x = jnp.concatenate(leaves, -1)
        for n in self.hidden_sizes:
            x = self.activation(nn.Dense(n, kernel_init=fan_in_uniform)(x))
        return x
