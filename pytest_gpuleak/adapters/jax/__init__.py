"""JAX's arrays, tracers and devices."""
