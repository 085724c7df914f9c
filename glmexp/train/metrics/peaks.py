"""What a GPU can compute at most, for the model FLOPs utilisation (MFU).

Dense matrix products (data sheets that tell the rate with 2:4 sparsity tell twice as much), with fp32 accumulation, which
PyTorch uses, and at the boost clock. fp32 is without TF32, as PyTorch computes by default. From NVIDIA's data sheets and
white papers: V100, T4, A100, A10, A30, A40, L4, L40, L40S, H100, H200 and B200 Tensor Core GPU data sheets; GA102 white paper
v2 (RTX 30, RTX A6000); Ada white paper v2 (RTX 40, RTX 6000 Ada); RTX Blackwell white paper (RTX 50).
"""

import re

import torch

from glmexp.config.choices import Dtype
from glmexp.config.engine_schema import PrecisionConfig

Peaks = tuple[float | None, float | None, float]
"""bf16, fp16 and fp32 in TFLOP/s; None where there are no matrix units for it."""

PEAKS: dict[str, Peaks] = {
    r"V100S.*": (None, 130, 16.4),
    r"V100-SXM.*": (None, 125, 15.7),
    r"V100-PCIE.*": (None, 112, 14),
    r"T4": (None, 65, 8.1),
    r"A100.*|A800.*": (312, 312, 19.5),
    r"A10": (125, 125, 31.2),
    r"A30": (165, 165, 10.3),
    r"A40": (149.7, 149.7, 37.4),
    r"RTX A6000": (154.8, 154.8, 38.7),
    r"L4": (121, 121, 30.3),
    r"L40": (181, 181, 90.5),
    r"L40S": (362, 362, 91.6),
    r"RTX 6000 Ada.*": (364.2, 364.2, 91.1),
    r"H100 PCIe": (756, 756, 51),
    r"(H100|H200) NVL": (835, 835, 60),
    r"(H100|H800|H200)( \d+GB HBM3e?)?": (989, 989, 67),
    r"B200": (2250, 2250, 75),
    r"RTX 3090": (71, 71, 35.6),
    r"RTX 3090 Ti": (80, 80, 40),
    r"RTX 4090": (165.2, 165.2, 82.6),
    r"RTX 5090": (209.5, 209.5, 104.8),
}
"""What the driver calls the GPU, without ``NVIDIA``, ``Tesla`` and ``GeForce`` -> its peaks."""


def peak_tflops(device: torch.device, precision: PrecisionConfig) -> float | None:
    """Peak of one rank's device in TFLOP/s at the dtype of the matrix products; None on the CPU and for a GPU not listed."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device), precision.autocast_dtype or precision.dtype)


def peak_of(name: str, dtype: Dtype) -> float | None:
    """The same by the GPU's name. None for a MIG slice too, which has a part of its GPU's matrix units."""
    model = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", name)
    for pattern, peaks in PEAKS.items():
        if re.fullmatch(pattern, model) and "MIG" not in model:
            return peaks[(Dtype.bf16, Dtype.fp16, Dtype.fp32).index(dtype)]
    return None
