"""Names of numbers in TensorBoard, for numbers written in training and exported later."""

OVER_LAYERS = "over layers"


def scalar_name(tag: str, layer: str, line: str) -> str:
    """Tag, layer and line; numbers of the whole run have no layer, and shares have no line.

    >>> scalar_name("Weight Norm", "fc", "mean"), scalar_name("Loss", "", "train_loss -σ")
    ('weight_norm/fc/mean', 'loss/train_loss_-std')
    """
    return scalar_part("/".join(part for part in (tag, layer, line) if part))


def scalar_part(text: str) -> str:
    """Lower case, without spaces and Greek letters."""
    return text.lower().replace(" ", "_").replace("σ", "std")
