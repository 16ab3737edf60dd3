"""All that training can notice, to compare before with after."""

import random

import numpy as np
import torch
from torch import nn


def bits(value):
    """All of a value, so that equal ones compare equal; tensors by identity, version and every bit."""
    if isinstance(value, nn.parameter.UninitializedTensorMixin):
        return id(value), type(value), value.requires_grad
    if isinstance(value, torch.Tensor):
        gradient = bits(value.grad) if value.is_leaf else None
        content = value.detach().to_dense().contiguous().numpy().tobytes()
        return id(value), value._version, value.requires_grad, value.dtype, tuple(value.shape), content, gradient
    if isinstance(value, dict):
        return id(value), [(key if isinstance(key, str) else id(key), bits(entry)) for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [bits(entry) for entry in value]
    if isinstance(value, (torch.Generator, np.random.Generator)):
        return id(value), str(value.get_state().tolist() if hasattr(value, "get_state") else value.bit_generator.state)
    return value if isinstance(value, (int, float, str, type(None))) else id(value)


def everything(model, optimizer, *more):
    """All that training can notice."""
    modules = [bits(vars(part)) for part in model.modules()]
    trained = bits(optimizer.state), bits(optimizer.param_groups)
    stream = torch.get_rng_state().numpy().tobytes(), random.getstate(), str(np.random.get_state(legacy=False))
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.backends.cudnn.enabled
    modes += torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()
    return modules, trained, stream, modes, [bits(thing) for thing in more]
