"""One pass over a tensor: the reference, the one for CPUs, and the one for GPUs."""
