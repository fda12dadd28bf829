"""All that exists only because some machine computes it faster: drop-ins for JAX and flax."""
