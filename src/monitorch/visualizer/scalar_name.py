"""What a number is called in TensorBoard: the same for those written in training and those exported later."""

OVER_LAYERS = "over layers"


def scalar_name(tag: str, layer: str, line: str) -> str:
    """Tag, layer and line; what belongs to the run as a whole has no layer, and a layer's share of a whole no line.

    >>> scalar_name("Weight Norm", "fc", "mean"), scalar_name("Loss", "", "train_loss -σ")
    ('weight_norm/fc/mean', 'loss/train_loss_-std')
    """
    return scalar_part("/".join(part for part in (tag, layer, line) if part))


def scalar_part(text: str) -> str:
    """Lower case, without spaces and Greek letters."""
    return text.lower().replace(" ", "_").replace("σ", "std")
