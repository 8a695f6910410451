"""Cross-entropy for labels that name a set of classes instead of one."""

from torch import Tensor


def set_loss(
    logs: Tensor,
    allowed: Tensor,
    class_weights: Tensor | None = None,
    set_weight: float = 1.0,
    smoothing: float = 0.0,
) -> Tensor:
    """Return minus the logarithm of the probability of all classes that a label allows, as a weighted mean.

    Args:
        logs: Logarithms of probabilities `[M, classes]`.
        allowed: Which classes each label allows, `[M, classes]`; at least one.
        class_weights: Weight of a label that allows one class only, for each class; equal if None.
        set_weight: Weight of a label that allows several classes.
        smoothing: Share of every label that is spread over all classes.
    """
    if not len(logs):
        return logs.sum() * 0.0
    losses = -logs.masked_fill(~allowed, -1e9).logsumexp(1)
    if smoothing:
        losses = (1.0 - smoothing) * losses - smoothing * logs.mean(1)
    weights = allowed.to(logs.dtype) if class_weights is None else allowed * class_weights
    single = allowed.sum(1) == 1
    weights = weights.sum(1).where(single, set_weight)
    return (losses * weights).sum() / weights.sum()
