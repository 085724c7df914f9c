"""What the overrides beside a file say where the file says "auto": the model's hidden size and the precision."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import glmexp
from glmexp.architecture import preset, read_config
from glmexp.config.compose import VERSION_BASE, conf_dir, register
from glmexp.config.errors import UserError
from glmexp.config.wording import from_hydra
from glmexp.dsconfig.convert.overrides import Known

DECIDE = ("experiment", "model", "precision")
"""Groups that a model and a precision can come from."""


def known(overrides: Sequence[str], config_dir: str | None = None) -> Known:
    """Model and precision of these overrides, composed without the rest; raises UserError.

    ``config_dir`` is the folder of ``--config-dir``.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    deciding = [text for text in overrides if text.lstrip("+").partition("=")[0].split(".")[0] in DECIDE]
    extra = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    register()
    try:
        for override in OverridesParser.create().parse_overrides(deciding):
            if override.is_sweep_override():
                raise UserError(
                    f'{override.input_line}: the file has "auto" where one model and one precision decide\n'
                    "write numbers and true or false into the file, or sweep over something else"
                )
        with initialize_config_dir(version_base=VERSION_BASE, config_dir=conf_dir(), job_name="glmexp"):
            values = compose("config", [*extra, *deciding])
    except (HydraException, OmegaConfBaseException) as error:
        raise from_hydra(error) from error
    path = _select(values, "model.path")
    dtype = _select(values, "precision.dtype")
    return Known(hidden_size(path) if isinstance(path, str) else None, None if dtype is None else dtype.value)


def _select(values: DictConfig, key: str) -> Any:
    """The value at a dotted key; None if it is not set or names a variable that is not there: composing tells of it."""
    try:
        return OmegaConf.select(values, key)
    except OmegaConfBaseException:
        return None


def hidden_size(path: str) -> int | None:
    """Hidden size of a shipped model or a local folder, where the HF Trainer finds it; None if it is not known here.

    transformers 5.24, integrations/deepspeed.py, ``trainer_config_finalize``.
    """
    released = preset(path)
    if released is not None:
        return released.hidden_size
    folder = Path(glmexp.__file__).parent / "models" / "tiny" if path == "tiny" else Path(path).expanduser()
    config = (read_config(folder) if folder.is_dir() else None) or {}
    inner = config.get("text_config")
    for section in (config, inner if isinstance(inner, dict) else {}):
        sizes = section.get("hidden_size") or section.get("hidden_sizes")
        sizes = sizes if isinstance(sizes, list) else [sizes]
        if sizes and all(isinstance(size, int) and size > 0 for size in sizes):
            return int(max(sizes))
    return None
