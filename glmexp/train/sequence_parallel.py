"""Ulysses sequence parallelism: ranks that share each sample, every one with some of its tokens (arXiv 2309.14509).

Consecutive ranks form a group and read the same micro batches. All but the attention works on a rank's own columns; in the
attention each rank has some of the heads and all of the columns, by an all-to-all before and after it. Each rank's loss is
that of its own targets, so that the gradients summed over all ranks are those of the whole batch, as without sharing.
"""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from torch.nn.functional import pad
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from glmexp.config.errors import UserError
from glmexp.data import Batch
from glmexp.train.loss import IGNORED, shifted


@dataclass(frozen=True)
class Part:
    """The columns of a micro batch that one rank works on: all of them, or its share."""

    input_ids: torch.Tensor
    """[micro, columns] int64."""
    targets: torch.Tensor
    """[micro, columns] int64: the token to predict from each column and those before it, -100 where nothing is learnt."""
    position_ids: torch.Tensor | None
    """[micro, columns] int64: the columns' numbers in the whole micro batch, or where rows are packed each token's place in its
    own sample; None for all columns, which the model numbers."""
    tokens: int
    """Tokens of these columns that are not padding."""
    length: int
    """Columns of the whole micro batch."""
    lengths: list[int]
    """Tokens of each sample of the whole micro batch, without padding."""

    def to(self, device: torch.device) -> "Part":
        """The same part on ``device``."""
        places = self.position_ids
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            position_ids=None if places is None else places.to(device, non_blocking=True),
        )

    def inputs(self) -> dict[str, torch.Tensor]:
        """Arguments of the model's forward pass."""
        if self.position_ids is None:
            return {"input_ids": self.input_ids}
        return {"input_ids": self.input_ids, "position_ids": self.position_ids}


def part_of(batch: Batch, size: int, place: int) -> Part:
    """The columns of rank ``place`` (from 0) among ``size`` ranks that share ``batch``.

    Labels are shifted before they are cut, so that a rank's last column predicts the next rank's first token. The columns are
    padded on the right to a multiple of ``size``; the shares have equal widths, and one may be padding only.
    """
    targets = shifted(batch.labels)
    micro, length = batch.input_ids.shape
    if size == 1:
        return Part(batch.input_ids, targets, batch.position_ids, batch.tokens, length, batch.lengths)
    width = -(-length // size)
    start, stop = place * width, (place + 1) * width
    missing = (0, width * size - length)
    return Part(
        pad(batch.input_ids, missing)[:, start:stop].contiguous(),
        pad(targets, missing, value=IGNORED)[:, start:stop].contiguous(),
        torch.arange(start, stop).repeat(micro, 1),
        int(batch.attention_mask[:, start:stop].sum()),
        length,
        batch.lengths,
    )


def check_model(config: PreTrainedConfig, size: int) -> None:
    """Refuses a model whose attention cannot be shared by ``size`` ranks, from its configuration alone.

    DeepSpeed replaces transformers' attention function and drops its mask (runtime/sequence_parallel/ulysses_sp.py): a model
    with an attention of its own, with a window or with a state that runs along the sequence would be trained wrongly.
    """
    asked, text = f"comm.sequence_parallel_size={size}", config.get_text_config()
    heads, shared = getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    known = getattr(kind, "_supports_attention_backend", False) and not getattr(kind, "_is_stateful", False)
    if not (known and isinstance(heads, int) and isinstance(shared, int)):
        raise UserError(
            f"{asked}: the attention of {config.model_type} is not transformers' exchangeable one, which it needs\n"
            "leave comm.sequence_parallel_size out; activation=checkpoint and a smaller batch.micro leave room for long samples"
        )
    layers = set(getattr(text, "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"} or getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None):
        raise UserError(
            f"{asked}: some layers of {config.model_type} see a part of the sequence only, a limit that sharing would lift\n"
            "leave comm.sequence_parallel_size out"
        )
    fits = [n for n in range(2, heads + 1) if heads % n == 0 and (shared % n == 0 or n % shared == 0)]
    if size not in fits:
        raise UserError(
            f"{asked}: the model's {heads} attention heads ({shared} of keys and values) cannot be dealt out to {size} ranks\n"
            f"set comm.sequence_parallel_size to {' or '.join(map(str, fits)) or 1}"
        )


def share(model: PreTrainedModel, micro: int, size: int) -> ModuleType | None:
    """Makes ranks share samples: the groups of ranks, and the attention that exchanges heads for columns.

    Called once by all ranks together, after the process group and the model are there; both hold for the whole process.

    Args:
        micro: samples of every micro batch.
        size: ranks that share a sample.

    Returns:
        What ``deepspeed.initialize`` takes as ``mpu``; None for ``size`` 1.
    """
    groups: Any = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=size,
        micro_batch_size=micro,
        seq_length_is_variable=True,
    )
    return groups  # type: ignore[no-any-return]
