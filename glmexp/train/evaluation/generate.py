"""Answers to prompts: greedy or sampled, a batch at a time, under any ZeRO stage."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from glmexp.models.prompts import prompts_for


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    synced: bool = False,
    numbers: Sequence[int] | None = None,
    device: torch.device | None = None,
    streamer: Any = None,
) -> list[str]:
    """The model's answers to one batch of prompts, without special tokens and the white space around them.

    Nothing but what is given here decides: penalties and sampling of the folder's generation_config.json are left out, its
    end tokens are kept. The model is in evaluation mode meanwhile and then as before.

    Args:
        prompts: token ids of each prompt, at least one; they are padded on the left.
        max_new_tokens: longest answer.
        temperature: 0 takes the likeliest token each time; above, tokens are drawn.
        top_p: draws from the likeliest tokens that together have this probability.
        seed: of the drawing. A prompt draws from its own generator, seeded by this and its number, so that its answer depends
            neither on its batch nor on the rank (but for the rounding of bf16).
        synced: at ZeRO stage 3 on several ranks, where a forward pass takes all of them: each goes on until all are done. All
            ranks call this together, then, and equally often.
        numbers: number of each prompt in the whole data set; null counts from 0.
        device: where the model computes; null is where its weights are.
        streamer: has ``put``, which takes the ids of the one prompt and then each token as it comes, and ``end``.
    """
    device = next(model.parameters()).device if device is None else device
    length = max(len(prompt) for prompt in prompts)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    rows = [[padding] * (length - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    drawing = LogitsProcessorList()
    if temperature > 0:
        drawing.append(Draw(temperature, top_p, seed, range(len(prompts)) if numbers is None else numbers))
    stops = stop_ids(model, tokenizer)
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=stops, pad_token_id=padding, use_cache=True
    )
    with _own_settings(model), torch.no_grad():
        ids = model.generate(
            torch.tensor(rows, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=settings,
            logits_processor=drawing,
            synced_gpus=synced,
            streamer=streamer,
        )
    return [_text(tokenizer, row[length:], stops) for row in ids.tolist()]


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end an answer: those of the prompt format, and the model's own."""
    own = getattr(model.generation_config, "eos_token_id", None)
    own = own if isinstance(own, list) else [own]
    return sorted({*prompts_for(tokenizer).stop_ids(), *(token for token in own if isinstance(token, int))})


class Draw(LogitsProcessor):  # type: ignore[misc]  # transformers is not followed by mypy
    """Leaves each row of scores the one token that its own generator draws, which the likeliest-token rule then takes."""

    def __init__(self, temperature: float, top_p: float, seed: int, numbers: Sequence[int]) -> None:
        self.temperature = temperature
        self.top_p = top_p
        # On the host, where every device draws alike.
        self.generators = [torch.Generator().manual_seed(_mixed(seed, number)) for number in numbers]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``scores`` [rows, vocabulary] with the drawn token at 0 and the others at minus infinity."""
        ordered, tokens = torch.softmax(scores.double().cpu() / self.temperature, dim=-1).sort(descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        kept = ordered.masked_fill(before >= self.top_p, 0.0)
        drawn = torch.full_like(scores, -torch.inf)
        for row, generator in enumerate(self.generators):
            place = torch.multinomial(kept[row], 1, generator=generator)
            drawn[row, tokens[row, place]] = 0.0
        return drawn


def _mixed(seed: int, number: int) -> int:
    """A seed of its own for each pair. torch's generator on the host goes by 32 bits, so these hold both numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "little")


@contextmanager
def _own_settings(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and no generation settings of the folder, which would fill in what a GenerationConfig leaves open."""
    # PEFT's wrapper hands its own settings to the model inside.
    holders = [model, *([model.get_base_model()] if hasattr(model, "get_base_model") else [])]
    training, given = model.training, [holder.generation_config for holder in holders]
    model.eval()
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for holder, settings in zip(holders, given, strict=True):
            holder.generation_config = settings
        model.train(training)


def _text(tokenizer: PreTrainedTokenizerBase, ids: list[int], stops: Sequence[int]) -> str:
    """The text before the first stop token."""
    end = next((place for place, token in enumerate(ids) if token in stops), len(ids))
    return str(tokenizer.decode(ids[:end], skip_special_tokens=True)).strip()
