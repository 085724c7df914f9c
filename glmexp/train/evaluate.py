"""One rank of ``evaluate``: ``python -m glmexp.train.evaluate FOLDER``, where FOLDER holds a config and which run is meant.

At ZeRO stage 3 the weights are partitioned over the ranks; below it each has all of them and DeepSpeed has no part in it.
"""

import copy
import json
import logging
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmexp.config.choices import Init
from glmexp.config.errors import UserError
from glmexp.config.evaluation import validation_alone
from glmexp.config.schema import Config
from glmexp.train import device as devices
from glmexp.train import logs
from glmexp.train.__main__ import main
from glmexp.train.failure import Where
from glmexp.train.ranks import Ranks
from glmexp.train.run import Run
from glmexp.trial.record import REQUEST, Phase, RankWriter

if TYPE_CHECKING:
    from glmexp.data import Samples
    from glmexp.train.weights.trained import Source

LOGGER = logging.getLogger("glmexp.train.evaluate")


class Evaluate(Run):
    """Loads what a run has trained and evaluates it."""

    def execute(self) -> dict[str, Any]:
        """The figures for ``result.json``; the answers are in ``predictions.jsonl``."""
        from glmexp.train.evaluation.evaluator import Evaluator
        from glmexp.train.weights.trained import find_source, load_run_tokenizer

        logs.join_libraries(self.ranks.rank)
        request = json.loads((self.folder / REQUEST).read_text(encoding="utf-8"))
        run = Path(request["run"])
        source = find_source(run, request["checkpoint"])
        self.tokenizer = load_run_tokenizer(self.config, source)
        samples = self.prepare_validation(run, source)
        devices.start_process_group(self.config, self.device)
        self.tell_devices()
        self.tell(f"weights: {source} of {run}")
        model = self.load(run, source)
        micro = self.config.eval.micro or self.config.batch.micro or 1
        generating = self.config.eval.generate
        evaluator = Evaluator(model, self.tokenizer, samples, self.config, micro, self.device, self.folder, generating)
        total = len(samples)
        with self.phase(Phase.evaluating, total):
            told = lambda share: self.writer.progress(Phase.evaluating, int(total * share), total)  # noqa: E731
            evaluation = evaluator.evaluate(source.step or 0, told)
        LOGGER.info("%s: %s (%d samples, %.3g s)", source, evaluation, evaluation.samples, evaluation.seconds)
        self.part()
        return evaluation.metrics()

    def prepare_validation(self, run: Path, source: "Source") -> "Samples":
        """The validation samples: those that the run has tokenised where they are the same, else tokenised here."""
        from glmexp.data import Samples, prepare
        from glmexp.data.prepare import tokens_key
        from glmexp.data.store import TOKENS, is_ready
        from glmexp.models import describe
        from glmexp.models.prompts import prompts_for
        from glmexp.train.weights.layout import WHOLE_MODEL

        config = self.config
        if self.ranks.leads_node:
            self.writer.progress(Phase.tokenising)
            whole = source.is_export and config.method.name in WHOLE_MODEL
            model = replace(config.model, path=str(source.path), init=Init.pretrained, revision=None) if whole else config.model
            needed = (prompts_for(self.tokenizer), int(describe(model).config.vocab_size), config.train.seed)
            ready = False
            with suppress(UserError):  # the files that the run was trained on are gone
                ready = is_ready(run, tokens_key(config.data, *needed))
            if not ready:
                report = lambda done, total: self.writer.progress(Phase.tokenising, done, total)  # noqa: E731
                prepare(validation_alone(config.data), *needed, self.folder, report)
            self.writer.progress(Phase.loading)
        else:
            self.wait_for_leader()
        samples = Samples.open(self.folder if (self.folder / TOKENS).is_dir() else run, "validation")
        assert samples is not None
        self.tell(f"validation data: {samples.counts.describe()}")
        return samples

    def load(self, run: Path, source: "Source") -> Any:
        """The trained model, partitioned if the DeepSpeed config says so."""
        import deepspeed

        from glmexp.train import engine as engines
        from glmexp.train.weights.trained import load_trained

        with self.phase(Phase.loading):
            # Kept until the engine stands: transformers holds it by a weak reference only.
            partition = engines.partition_on_load(self.ds_config)
            model, _ = load_trained(run, self.config, self.device, source)
            if partition is None:
                return model
            engine, *_ = deepspeed.initialize(model=model, config=copy.deepcopy(self.ds_config), dist_init_required=False)
            del partition
            return engine.module.eval()


def evaluate(folder: Path, config: Config, ranks: Ranks, writer: RankWriter, where: Where) -> dict[str, Any]:
    """The work of one rank."""
    return Evaluate(folder, config, ranks, writer, where).execute()


if __name__ == "__main__":
    main(sys.argv[1:], evaluate)
