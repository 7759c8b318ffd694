"""Ways to take the same steps: plain, stacked on a CPU, captured on a GPU; `training` picks one for a group."""
