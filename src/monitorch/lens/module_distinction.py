"""What kind of layer a module is, subclasses included."""

from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from ..engine.torch_private import BatchNorm, Convolution, Normalization

ACTIVATIONS = (
    *(nn.CELU, nn.ELU, nn.GELU, nn.GLU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU),
    *(nn.LogSigmoid, nn.LogSoftmax, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.RReLU, nn.SELU, nn.SiLU, nn.Sigmoid),
    *(nn.Softmax, nn.Softmax2d, nn.Softmin, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink),
    nn.Threshold,
)
DROPOUTS = (nn.AlphaDropout, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
LINEARS = (nn.Bilinear, nn.Identity, nn.Linear)
TOP_K = ("top_k", "topk", "num_experts_per_tok", "moe_top_k")
"""Where routers keep how many experts each token goes to."""


def isactivation(module: nn.Module) -> bool:
    """Whether the module is an activation function, of torch or of the transformers library."""
    return isinstance(module, ACTIVATIONS) or any(
        base.__module__ == "transformers.activations" for base in type(module).__mro__
    )


def isnotactivation(module: nn.Module) -> bool:
    """Whether the module is anything but an activation function."""
    return not isactivation(module)


def isdropout(module: nn.Module) -> bool:
    """Whether the module is a dropout."""
    return isinstance(module, DROPOUTS)


def islinear(module: nn.Module) -> bool:
    """Whether the module is linear or the identity."""
    return isinstance(module, LINEARS)


def isconv(module: nn.Module) -> bool:
    """Whether the module is a convolution or transposed convolution."""
    return isinstance(module, Convolution)


def isnormalization(module: nn.Module) -> bool:
    """Whether the module is a batch or instance normalization, lazy ones included."""
    return isinstance(module, Normalization)


def has_running_statistics(module: nn.Module) -> bool:
    """Whether the module is a batch normalization that keeps running statistics."""
    return isinstance(module, BatchNorm) and module.running_mean is not None and module.running_var is not None


def isrouter(module: nn.Module) -> bool:
    """Whether the module chooses experts, by its class name: a router, or a gate that knows how many to choose."""
    kind = type(module).__name__
    return "Router" in kind or (("Gate" in kind or "Gating" in kind) and experts_per_token(module) is not None)


def experts_per_token(module: nn.Module) -> int | None:
    """How many experts each token goes to, if the router says so."""
    found = (getattr(module, name, None) for name in TOP_K)
    return next((number for number in found if isinstance(number, int) and number > 0), None)


def isattention(module: nn.Module) -> bool:
    """Whether a module computes attention, judged by its class name and by what its forward calls.

    >>> isattention(nn.MultiheadAttention(4, 1)), isattention(nn.Linear(4, 1))
    (True, False)
    """
    name = type(module).__name__.lower()
    forward = getattr(type(module), "forward", None)
    called = getattr(getattr(forward, "__code__", None), "co_names", ())
    return "attention" in name or "attn" in name or scaled_dot_product_attention.__name__ in called
