"""A model with random weights, the same on every rank, at every ZeRO stage and in every precision.

Each module's own initialisation runs in fp32 with a seed of its own, drawn from the run's seed and the module's name. So
the numbers do not depend on the order, on how parameters are partitioned, or on the compute dtype (but for rounding);
they differ between a CPU and a GPU, whose generators differ.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GlmConfig, GlmForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import guard_torch_init_functions, no_init_weights
from transformers.integrations import is_deepspeed_zero3_enabled


def random_model(
    config: PreTrainedConfig, dtype: torch.dtype, attention: str, seed: int, device: torch.device
) -> PreTrainedModel:
    """A model built on ``device`` in ``dtype`` with seeded random weights; under ZeRO-3 its parameters are partitioned."""
    partitioned = is_deepspeed_zero3_enabled()
    # DeepSpeed places partitioned parameters itself, on the device or, offloaded, on the host.
    with nullcontext() if partitioned else torch.device(device), no_init_weights():
        model = from_config(config, dtype, attention)
    initialise(model, seed, partitioned)
    if partitioned:
        restore_rotary_tables(model)
    model.tie_weights()
    return model


def from_config(config: PreTrainedConfig, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """The untrained model of a configuration, on the current device. Nothing but transformers' own classes is used."""
    if isinstance(config, GlmConfig):
        return GlmForCausalLM._from_config(config, dtype=dtype, attn_implementation=attention)
    return AutoModelForCausalLM.from_config(config, trust_remote_code=False, dtype=dtype, attn_implementation=attention)


def initialise(model: PreTrainedModel, seed: int, partitioned: bool) -> None:
    """Fills the model's parameters in place, each module by the rule of the architecture that it belongs to."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), guard_torch_init_functions():
        for name, module, owner in _modules(model, "", model):
            parameters = _parameters(module)
            with _whole(parameters, partitioned), _in_float32(parameters):
                torch.manual_seed(_module_seed(seed, name))
                owner._init_weights(module)


def restore_rotary_tables(model: PreTrainedModel) -> None:
    """Computes the rotary frequencies again, in fp32, after ZeRO-3's construction of a half-precision model.

    Inside ``deepspeed.zero.Init`` every new floating-point tensor gets the compute dtype, these too; transformers 5.24
    guards against it and 5.17 does not. Frequencies rounded to bf16 are off by up to 0.4 %, which turns far positions.
    """
    with torch.no_grad():
        for _, module, owner in _modules(model, "", model):
            rounded = [name for name in ("inv_freq", "original_inv_freq") if hasattr(module, name)]
            for name in rounded:
                module.register_buffer(name, getattr(module, name).float(), persistent=False)
            if rounded:
                owner._init_weights(module)


def _modules(module: nn.Module, name: str, owner: PreTrainedModel) -> Iterator[tuple[str, nn.Module, PreTrainedModel]]:
    """Modules, inner ones first, each with the model whose rule it follows (composite models have several)."""
    for key, child in module.named_children():
        inside = child if isinstance(child, PreTrainedModel) else owner
        yield from _modules(child, f"{name}.{key}" if name else key, inside)
    yield name, module, owner


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that a module's rule may touch: its own and those of its plain children."""
    found = list(module.parameters(recurse=False))
    for child in module.children():
        if not isinstance(child, PreTrainedModel):
            found.extend(child.parameters(recurse=False))
    return found


def _whole(parameters: list[nn.Parameter], partitioned: bool) -> AbstractContextManager[None]:
    """Gathers partitioned parameters; on leaving, rank 0's values go to every rank."""
    if not partitioned or not parameters:
        return nullcontext()
    import deepspeed

    gathered: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(parameters, modifier_rank=0)
    return gathered


@contextmanager
def _in_float32(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Lets the rule write fp32 numbers, which are rounded to the parameter's dtype afterwards."""
    stored = [(parameter, parameter.data) for parameter in parameters if parameter.dtype != torch.float32]
    for parameter, data in stored:
        parameter.data = data.float()
    yield
    for parameter, data in stored:
        data.copy_(parameter.data)
        parameter.data = data


def _module_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
