"""Faster ways to take the same steps, and the same predictions: CUDA graphs, kernels, layers that are swapped."""
