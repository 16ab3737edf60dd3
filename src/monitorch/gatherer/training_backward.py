"""Telling the backward pass that trains from one that only makes a part of the loss, such as a gradient penalty."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parameter import is_lazy


def reaches(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether the backward pass that runs now computes the gradient of any of these parameters.

    >>> weight, x = nn.Parameter(torch.ones(1)), torch.ones(1, requires_grad=True)
    >>> product, found = weight * x, []
    >>> _ = product.register_hook(lambda _: found.append(reaches([weight])))
    >>> (slope,) = torch.autograd.grad(product, x, create_graph=True)
    >>> (product + slope).backward()
    >>> found
    [False, True]
    """
    return any(_is_reached(own) for own in parameters if own.requires_grad and own.is_leaf and not is_lazy(own))


def _is_reached(parameter: nn.Parameter) -> bool:
    try:
        found: bool = torch._C._will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:  # so torch says that autograd.grad() was asked for the gradient of this very tensor
        return True
    return found
