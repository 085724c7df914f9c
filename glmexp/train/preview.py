"""The ``preview`` verb's child: ``python -m glmexp.train.preview FOLDER`` prints samples as they would be trained on."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

from glmexp.config import load
from glmexp.config.choices import Init, Source
from glmexp.config.errors import UserError
from glmexp.trial.orphan import die_with_parent
from glmexp.trial.record import CONFIG, RankWriter, State

SAMPLES = 5
"""Samples shown when ``data.limit`` is null."""


def main(folder: Path) -> int:
    """Prints the samples; a user's error goes into ``rank0.json`` for the parent to tell."""
    die_with_parent()
    writer = RankWriter(folder, 0)
    try:
        lines = render(folder)
    except UserError as error:
        writer.finish(State.invalid, str(error))
        return 2
    with contextlib.suppress(BrokenPipeError):  # as with `preview ... | head`
        print("\n".join(lines), flush=True)
    writer.finish(State.complete)
    return 0


def render(folder: Path) -> list[str]:
    from glmexp.data.preview import render as render_samples
    from glmexp.models import load_tokenizer, locate
    from glmexp.models.prompts import prompts_for

    config = load(folder / CONFIG)
    samples = config.data.limit or SAMPLES
    if config.data.source is Source.synthetic:
        return render_samples(config.data, None, None, samples)
    model = replace(config.model, init=Init.random)  # so that no weights are fetched
    tokenizer = load_tokenizer(locate(model), model.template)
    return render_samples(config.data, tokenizer, prompts_for(tokenizer), samples)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
