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
        message = 'is left out: accelerate writes 1, whatever the Trainer\'s own says; write "auto"'
        yield warning("gradient_accumulation_steps", Kind.no_effect, message)
    key = f"{asked.bf16_section}.enabled"
    if asked.view.raw(key) == "auto" and not asked.has("fp16"):
        message = 'is the only precision: a run without bf16 is fp32; add {"enabled": "auto"} as fp16 for cards without bf16'
        yield warning(key, Kind.auto, message)
    if asked.has("steps_per_print") and asked.asks("steps_per_print"):
        yield info("steps_per_print", Kind.no_effect, "is overwritten by accelerate, which silences DeepSpeed's printing")
