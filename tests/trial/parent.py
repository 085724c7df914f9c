"""A parent of its own process: one trial with the stand-in worker, as ``python -m glmexp`` runs it. FOLDER [OVERRIDE...]

With WARM in the environment its ranks are forked, as those of a sweep are.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.trial import warm
from glmexp.trial.launcher import detect, without_local_rank
from glmexp.trial.node import new_run_id, once_a_node
from glmexp.trial.placement import resolve
from glmexp.trial.run import exit_code, run_trial
from glmexp.trial.starter import COLD
from glmexp.trial.warm import WarmStarter

warm.SERVER = "light_server"


def main() -> int:
    root, *overrides = without_local_rank(sys.argv[1:])
    composed = compose(overrides)
    try:
        placement = resolve(composed.config, os.environ)
        folder = Path(root) / new_run_id(placement.node)
        with WarmStarter() if "WARM" in os.environ else nullcontext(COLD) as start:
            return exit_code(run_trial(composed, folder, overrides, placement, worker="stand_in", starter=start))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(once_a_node(main, detect(os.environ)))
