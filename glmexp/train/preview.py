"""The ``preview`` verb's child: ``python -m glmexp.train.preview FOLDER`` prints samples as they would be trained on."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from glmexp.config.choices import Init, Source
from glmexp.config.schema import Config
from glmexp.train.child import answer

SAMPLES = 5
"""Samples shown when ``data.limit`` is null."""


def preview(config: Config, _: Mapping[str, Any], out: TextIO) -> None:
    """Prints the samples; raises UserError."""
    print("\n".join(render(config)), file=out, flush=True)


def render(config: Config) -> list[str]:
    from glmexp.data.preview import render as render_samples
    from glmexp.models import load_tokenizer, locate
    from glmexp.models.prompts import prompts_for

    samples = config.data.limit or SAMPLES
    if config.data.source is Source.synthetic:
        return render_samples(config.data, None, None, samples)
    model = replace(config.model, init=Init.random)  # so that no weights are fetched
    tokenizer = load_tokenizer(locate(model), config.model.template)
    return render_samples(config.data, tokenizer, prompts_for(tokenizer), samples)


if __name__ == "__main__":
    sys.exit(answer(Path(sys.argv[1]), preview))
