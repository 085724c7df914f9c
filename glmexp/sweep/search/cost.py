"""Which trial needs less GPU memory: an order, and no prediction.

Figures are bytes a parameter of the model, activations too: on one GPU, ChatGLM2-6B in bf16 with LoRA and 8 x 1024 tokens took
42 GiB beside its weights, 8 GiB with activation checkpointing, over 6.24e9 parameters. A model of another shape weighs the two
parts otherwise, but within a sweep what holds is that every knob that can only need more never comes earlier.
"""

from collections.abc import Sequence

from glmexp.config.batch import solve
from glmexp.config.choices import Attention, Dtype, Method, OffloadDevice
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.dsconfig.machine import Machine
from glmexp.sweep.jobs import Job

PER_TOKEN = 9e-4
PER_TOKEN_CHECKPOINTED = 1.7e-4
EAGER_LENGTH = 1000
"""Tokens at which the attention matrices of ``eager`` take about as much as all other activations."""
LORA_SHARE = 4e-5
"""Trained share of the parameters for each column of the update (rank 8 on the attention's input: 1.95e6 of 6.24e9)."""
PREFIX_SHARE = 2.3e-6
"""Trained share of the parameters for each position of a prefix (128 of them: 1.84e6 of 6.24e9)."""
LAYER_SHARE = 0.033
"""Share of one layer's parameters (0.204e9 of 6.24e9)."""
QUANTISED_SHARE = 0.915
"""Share of the linear layers but the head, which QLoRA quantises (5.71e9 of 6.24e9)."""
QUANT, DOUBLE_QUANT = 0.5625, 0.516
"""Bytes a quantised parameter: 4 bits, and for each 64 of them a scale of 4 bytes, or of 1 byte and a 256th of 4."""


def cheap_first(jobs: Sequence[Job]) -> list[Job]:
    """The jobs in the order of what they need, least first; equals stay as they are."""
    return sorted(jobs, key=lambda job: demand(job.composed.config, job.placement.machine))


def demand(config: Config, machine: Machine) -> tuple[float, ...]:
    """What two trials are compared by: model and activations in bytes a parameter, then what breaks a tie."""
    batch = solve(config.batch, machine.world_size, sequence_parallel_size(config))
    bucket = config.zero.reduce_bucket_size or 0
    return (
        round(_model(config, machine) + _activations(config, batch.micro), 9),
        -config.zero.stage,
        float(batch.accumulation > 1),
        float(bucket),
    )


def _model(config: Config, machine: Machine) -> float:
    """Weights, gradients and optimizer states that stay on the GPU, as far as ZeRO shards them."""
    stage, offload = config.zero.stage, config.offload
    # On the CPU everything is in host memory, wherever it is called.
    moved = machine.device == "gpu" and offload.device is not OffloadDevice.none
    share = {key: 1 / machine.world_size if stage >= key else 1.0 for key in (1, 2, 3)}
    element = 4.0 if config.precision.dtype is Dtype.fp32 else 2.0
    full_states = not config.precision.bf16_optimizer_states
    trained = _trained_share(config)
    weights = 0.0 if moved and offload.parameters else _weight(config, element) * share[3]
    gradients = trained * element * share[2]
    states = 0.0 if moved else trained * (12.0 if full_states else 6.0) * share[1]
    return weights + gradients + states


def _weight(config: Config, element: float) -> float:
    if config.method.name is not Method.qlora:
        return element
    return QUANTISED_SHARE * (DOUBLE_QUANT if config.method.double_quant else QUANT) + (1 - QUANTISED_SHARE) * element


def _trained_share(config: Config) -> float:
    method = config.method
    if method.name in (Method.lora, Method.qlora):
        return min(1.0, LORA_SHARE * (method.rank or 1))
    if method.name is Method.ptuning_v2:
        return min(1.0, PREFIX_SHARE * (method.prefix_length or 1))
    if method.name is Method.freeze and not method.trainable:  # what patterns name may be all
        return min(1.0, LAYER_SHARE * (method.last_layers or 1))
    return 1.0


def _activations(config: Config, micro: int) -> float:
    length = config.data.max_length + (config.method.prefix_length or 0)
    attention = 1 + length / EAGER_LENGTH if config.kernels.attention is Attention.eager else 1.0
    per_token = PER_TOKEN_CHECKPOINTED if config.activation.checkpoint else PER_TOKEN
    return micro * length * attention * per_token / sequence_parallel_size(config)
