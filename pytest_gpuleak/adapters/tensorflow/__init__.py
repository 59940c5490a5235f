"""Adapter to TensorFlow and Keras: eager tensors, variables, traced functions, and the counters of GPUs."""
