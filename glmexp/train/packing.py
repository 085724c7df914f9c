"""Whether a model keeps samples apart that share a row (``data.packing``)."""

import torch
from deepspeed import DeepSpeedEngine

from glmexp.config.errors import UserError

BEFORE, SAMPLE = 8, 4
"""Tokens of the sample in front, and of the one that must not see it."""
SHARE = 0.1
"""A sample must change less than this share of what it changes by where it does see what is in front."""
ROUNDING = 0.05
"""Difference of two logits, as a share of the largest, that half precision may make in batches of different shapes."""


@torch.no_grad()
def check_packing(engine: DeepSpeedEngine) -> None:
    """Refuses a model whose samples would see each other in a packed row; called by all ranks together.

    Which models those are is found out by asking: not all of transformers' architectures hand the positions on to where the
    attention mask is made (GPT-OSS, OPT and BLOOM do not), and a state that runs along the row knows no borders. A sample must
    come out the same behind two different ones, and alone.

    Raises:
        UserError: it does not.
    """
    config = engine.module.config
    ids = torch.arange(2 * BEFORE + SAMPLE, device=engine.device) % config.get_text_config().vocab_size
    one, other, sample = ids[:BEFORE], ids[BEFORE : 2 * BEFORE], ids[2 * BEFORE :]
    rows = torch.stack([torch.cat([before, sample]) for before in (one, other)])
    places = torch.cat([torch.arange(BEFORE), torch.arange(SAMPLE)]).to(engine.device).repeat(2, 1)
    engine.eval()
    packed = engine(input_ids=rows, position_ids=places, use_cache=False).logits[:, BEFORE:].float()
    seen = engine(input_ids=rows, use_cache=False).logits[:, BEFORE:].float()
    alone = engine(input_ids=sample[None], use_cache=False).logits.float()
    engine.train()
    leaks = _difference(packed[0], packed[1]) > SHARE * _difference(seen[0], seen[1])
    allowed = max(SHARE * _difference(seen[0], alone[0]), ROUNDING * float(alone.abs().max()))
    if leaks or _difference(packed[0], alone[0]) > allowed:
        raise UserError(
            f"data.packing=true: samples that share a row would not be kept apart by this model ({config.model_type})\n"
            "leave it out; data.group_by_length=true saves most of the padding with any model"
        )


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
