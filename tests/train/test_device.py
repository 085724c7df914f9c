"""The device of a rank."""

import pytest
import torch
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

from glmexp.train import device


@pytest.mark.parametrize("visible", ["GPU-a2e7a640-91a9-3f06", "MIG-a2e7a640,MIG-0", "0,GPU-1"])
def test_gpus_may_be_named_by_uuid(visible, monkeypatch):
    accelerator = CUDA_Accelerator()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ValueError, match="invalid literal"):
        accelerator._get_nvml_gpu_id(0)
    monkeypatch.setattr("deepspeed.accelerator.get_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (5 * 2**30, 9 * 2**30))
    device.name_gpus_by_uuid()
    assert accelerator.available_memory() == 5 * 2**30


@pytest.mark.parametrize("visible", [None, "", "0", "3, 1"])
def test_numbers_are_left_to_deepspeed(visible, monkeypatch):
    accelerator = CUDA_Accelerator()
    monkeypatch.setattr("deepspeed.accelerator.get_accelerator", lambda: accelerator)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    device.name_gpus_by_uuid(environ)
    assert "available_memory" not in vars(accelerator)
