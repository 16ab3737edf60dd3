"""A function of the user that has no gradient for its input."""

import torch


class Cut(torch.autograd.Function):
    """Passes numbers on, and no gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None
