"""ZenFlow as DeepSpeed 0.19.8 ships it scrambles every matrix of the model; this mends it."""

from typing import Any

from deepspeed.runtime.zenflow.zenflow_stage_1_and_2 import ZenFlowZeroOptimizer


def keep_weights_in_place() -> None:
    """To be called before ``deepspeed.initialize``: makes the model's parameters the transposed views that ZenFlow means.

    ZenFlow flattens each matrix transposed, so that a column is contiguous (runtime/zenflow/zenflow_utils.py,
    _flatten_dense_tensors). ``DeepSpeedZeroOptimizer._update_model_bit16_weights``, which it inherits, then lays the matrix's
    own shape over these transposed values: a loaded model is noise from the start.
    """
    ZenFlowZeroOptimizer._update_model_bit16_weights = _update_model_bit16_weights


def _update_model_bit16_weights(self: ZenFlowZeroOptimizer, group_index: int) -> None:
    flat: Any = self.bit16_groups_flat[group_index]
    shapes = self.round_robin_bit16_meta[group_index]
    offsets = self.round_robin_bit16_offsets[group_index]
    for parameter, meta, offset in zip(self.round_robin_bit16_groups[group_index], shapes, offsets, strict=True):
        values = flat.narrow(0, offset, meta.numel())
        parameter.data = values.view(meta.shape[::-1]).t() if meta.dim() == 2 else values.view(meta.shape)
