"""What the Hugging Face Trainer makes of a config (transformers/integrations/deepspeed.py, accelerate's DeepSpeedPlugin).

The Trainer's own arguments replace "auto" and are compared with a number. Where a key is left out they reach nobody.
"""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error, info, warning


def findings(asked: Asked) -> Iterator[Finding]:
    if not asked.trainer:
        return
    if not asked.has("zero_optimization"):
        message = 'is left out, and accelerate refuses a config without it; add {"stage": 0} at least'
        yield error("zero_optimization", Kind.contradiction, message)
    if not asked.has("gradient_clipping"):
        message = 'is left out: the Trainer\'s max_grad_norm never reaches DeepSpeed, which clips at its own 1.0; write "auto"'
        yield warning("gradient_clipping", Kind.no_effect, message)
    if not asked.has("gradient_accumulation_steps"):
        refused = ', and a train_batch_size of "auto" with another is refused' if _is_auto(asked, "train_batch_size") else ""
        message = f'is left out: accelerate writes 1, whatever the Trainer\'s own says{refused}; write "auto"'
        yield warning("gradient_accumulation_steps", Kind.no_effect, message)
    key = f"{asked.bf16_section}.enabled"
    if _is_auto(asked, key) and not asked.has("fp16"):
        message = 'is the only precision: a run without bf16 is fp32; add {"enabled": "auto"} as fp16 for cards without bf16'
        yield warning(key, Kind.auto, message)
    if asked.stage == 0 and _is_auto(asked, "fp16.enabled"):
        message = '"auto" trains wrongly at stage 0 under the Trainer\'s fp16: the loss scale is never applied; use stage 1'
        yield warning("fp16.enabled", Kind.value, message)
    if asked.view.raw("steps_per_print") is not None:
        yield info("steps_per_print", Kind.no_effect, "is overwritten by accelerate, which silences DeepSpeed's printing")


def _is_auto(asked: Asked, key: str) -> bool:
    return bool(asked.view.raw(key) == "auto")
