"""Cross entropy over the target tokens, in fp32."""

import torch
from torch.nn.functional import cross_entropy

IGNORED = -100
"""Label of a position that is not learnt."""


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """Labels moved one to the left, so that position t holds the token to predict from tokens 0..t.

    ``labels`` [micro, length] are aligned with the input ids; this is the only shift there is. The last column has nothing to
    predict. Moving the labels instead of cutting the logits spares a copy of the logits.
    """
    moved = torch.full_like(labels, IGNORED)
    moved[:, :-1] = labels[:, 1:]
    return moved


def target_count(targets: torch.Tensor) -> int:
    """Tokens that the loss sees: targets other than -100."""
    return int((targets != IGNORED).sum())


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Summed cross entropy in fp32 of the target tokens, a scalar in nats.

    Args:
        logits: [micro, length, vocabulary], any floating dtype.
        targets: [micro, length] int64, the token to predict from each position (``shifted``), -100 where nothing is learnt.
    """
    return cross_entropy(
        logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )
