"""One pass over a tensor: the reference, the kernels for CPUs, and the kernels for GPUs."""
