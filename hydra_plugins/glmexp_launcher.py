"""Hydra's door to glmexp's sweeps: ``hydra/launcher=glmexp``, the shipped choice.

Hydra takes launchers only from the package ``hydra_plugins`` and imports this module at every start, so it stays small.
"""

from collections.abc import Sequence

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
