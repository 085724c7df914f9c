"""One rank of test_zero3.py: ``python zero3_rank.py GOLDEN BROKEN``. Compares ZeRO-3's models with plain ones, bit by bit."""

import sys
from pathlib import Path

import deepspeed
import pytest
import torch
from transformers.integrations import HfDeepSpeedConfig

from glmexp.config.choices import Hub, Init
from glmexp.config.schema import ModelConfig
from glmexp.models import ModelLoadError, build_model

CPU = torch.device("cpu")


def model_config(path: str, init: Init) -> ModelConfig:
    values = {"revision": None, "template": None, "rope_style": None, "recommended_precisions": []}
    return ModelConfig(path=path, hub=Hub.huggingface, init=init, **values)


def zero3(dtype: torch.dtype) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": dtype is torch.bfloat16},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }


def compare(path: str, init: Init, dtype: torch.dtype) -> None:
    # Global random numbers differ between ranks on purpose: weights may not depend on them.
    torch.manual_seed(torch.distributed.get_rank())
    plain = build_model(model_config(path, init), dtype, "sdpa", 7, CPU)
    alive = HfDeepSpeedConfig(zero3(dtype))
    model = build_model(model_config(path, init), dtype, "sdpa", 7, CPU)
    assert all(parameter.numel() == 0 and parameter.ds_numel > 0 for parameter in model.parameters()), "not partitioned"
    reference = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            assert parameter.dtype is dtype, name
            assert torch.equal(parameter, reference[name]), name
    frequencies = [module.inv_freq for module in model.modules() if hasattr(module, "inv_freq")]
    expected = [module.inv_freq for module in plain.modules() if hasattr(module, "inv_freq")]
    assert frequencies
    assert all(torch.equal(a, b) and a.dtype is torch.float32 for a, b in zip(frequencies, expected, strict=True))
    del alive


def refused(path: str) -> None:
    alive = HfDeepSpeedConfig(zero3(torch.float32))
    with pytest.raises(ModelLoadError, match=r"lacks model\.norm\.weight"):
        build_model(model_config(path, Init.pretrained), torch.float32, "sdpa", 7, CPU)
    del alive


def main() -> None:
    original, broken = Path(sys.argv[1]), Path(sys.argv[2])
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    for dtype in (torch.float32, torch.bfloat16):
        compare(str(original), Init.pretrained, dtype)
        compare(str(original), Init.random, dtype)
    refused(str(broken))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
