"""Training a part of a model as it is: its last layers, and parameters by name."""

import re
from fnmatch import fnmatchcase

from torch import nn
from transformers import PreTrainedModel

from glmexp.config.errors import UserError, nearest
from glmexp.config.schema import MethodConfig

MOST_NAMES = 16
"""Parameter names that an error lists."""


def freeze(model: PreTrainedModel, method: MethodConfig) -> PreTrainedModel:
    """The model with only the last ``method.last_layers`` layers trained, and what ``method.trainable`` names.

    The model may be on the meta device. A tied tensor is trained if one of its names is chosen.

    Raises:
        UserError: more layers than there are, or a pattern that names nothing; the message lists the names.
    """
    chosen = layers(model, method.last_layers)[-method.last_layers :] if method.last_layers else ()
    named = dict(model.named_parameters(remove_duplicate=False))
    model.requires_grad_(False)
    for layer in chosen:
        layer.requires_grad_(True)
    for pattern in method.trainable or ():
        matching = [name for name in named if fnmatchcase(name, pattern)]
        if not matching:
            raise UserError(_names_nothing(pattern, list(named)))
        for name in matching:
            named[name].requires_grad_(True)
    return model


def layers(model: PreTrainedModel, wanted: int) -> nn.ModuleList:
    """The model's layers, in order; UserError if there are fewer than ``wanted``, or none that can be told."""
    count = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0))
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if not lists:
        raise UserError(
            f"method.last_layers={wanted}: the layers of {type(model).__name__} are not a list of num_hidden_layers modules\n"
            "name what is trained: method.last_layers=null method.trainable=['lm_head.*']"
        )
    if wanted > count:
        raise UserError(
            f"method.last_layers={wanted}: the model has {count} layers\n"
            f"set method.last_layers={count} or fewer, or method=full"
        )
    return lists[0]


def _names_nothing(pattern: str, names: list[str]) -> str:
    kinds = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))
    close = nearest(pattern, [*kinds, *names])
    hint = f"; did you mean {close}?" if close else ""
    more = f" and {len(kinds) - MOST_NAMES} more" if len(kinds) > MOST_NAMES else ""
    return (
        f"method.trainable: {pattern} names no parameter of this model{hint}\n"
        f"its parameters are {', '.join(kinds[:MOST_NAMES])}{more}"
    )
