"""Hydra's doors to glmexp's sweeps: ``hydra/launcher=glmexp`` and ``hydra/sweeper=glmexp``, the shipped choices.

Hydra takes plugins only from the package ``hydra_plugins`` and imports this module at every start, so it stays small.
"""

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GlmexpLauncher(Launcher):
    """Runs the trials of a sweep in processes of their own, several at once if asked, in an order that may be searched."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from glmexp.sweep.launcher import launch

        return launch(self.context.config_loader, self.config, job_overrides, initial_job_idx)


class GlmexpSweeper(BasicSweeper):
    """Hydra's grid, without composing each trial twice: the launcher composes all of them before the first one starts."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        if not isinstance(self.launcher, GlmexpLauncher):
            super().validate_batch_is_legal(batch)
