"""Peaks of devices, the clock of a step, and what a run tells of both."""

import time

import pytest
import torch

from glmexp.config import compose
from glmexp.config.choices import Dtype
from glmexp.train.metrics.clock import Activity, StepClock
from glmexp.train.metrics.peaks import PEAKS, peak_of, peak_tflops


@pytest.mark.parametrize(
    ("name", "bf16", "fp16", "fp32"),
    [
        ("NVIDIA H200", 989, 989, 67),
        ("NVIDIA H100 80GB HBM3", 989, 989, 67),
        ("NVIDIA H100 PCIe", 756, 756, 51),
        ("NVIDIA H100 NVL", 835, 835, 60),
        ("NVIDIA A100-SXM4-40GB", 312, 312, 19.5),
        ("NVIDIA A100 80GB PCIe", 312, 312, 19.5),
        ("NVIDIA A10", 125, 125, 31.2),
        ("NVIDIA L4", 121, 121, 30.3),
        ("NVIDIA L40S", 362, 362, 91.6),
        ("NVIDIA GeForce RTX 3090", 71, 71, 35.6),
        ("NVIDIA GeForce RTX 4090", 165.2, 165.2, 82.6),
        ("Tesla V100-SXM2-32GB", None, 125, 15.7),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None, None),
        ("NVIDIA H200 MIG 3g.71gb", None, None, None),
        ("NVIDIA A10G", None, None, None),
        ("NVIDIA GeForce RTX 4090 D", None, None, None),
        ("AMD Instinct MI300X", None, None, None),
    ],
)
def test_peaks_are_those_of_the_very_device(name: str, bf16: float, fp16: float, fp32: float) -> None:
    assert [peak_of(name, dtype) for dtype in (Dtype.bf16, Dtype.fp16, Dtype.fp32)] == [bf16, fp16, fp32]


def test_the_peak_is_that_of_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    found = {
        choice: peak_tflops(torch.device("cuda"), compose([f"precision={choice}"]).config.precision)
        for choice in ("bf16", "fp32", "autocast")
    }
    assert found == {"bf16": 312, "fp32": 19.5, "autocast": 312}
    assert peak_tflops(torch.device("cpu"), compose([]).config.precision) is None
    assert all(half is None or half > single for half, _, single in PEAKS.values())


def test_every_second_of_a_step_belongs_to_one_activity() -> None:
    clock = StepClock(torch.device("cpu"))
    for _ in range(2):  # two steps
        began = time.perf_counter()
        clock.enter(Activity.data)
        time.sleep(0.02)
        for _ in range(2):  # two micro batches
            clock.enter(Activity.forward)
            clock.enter(Activity.backward)
            time.sleep(0.01)
        clock.enter(Activity.update)
        clock.enter(None)
        whole = time.perf_counter() - began
        time.sleep(0.03)  # between the steps
        spent = clock.split()
        assert list(spent) == list(Activity)
        assert sum(spent.values()) == pytest.approx(whole, abs=2e-3)
        assert spent[Activity.data] >= 0.02
        assert spent[Activity.backward] >= 0.02
        assert spent[Activity.forward] < 0.01
    assert clock.split() == dict.fromkeys(Activity, 0.0)


def test_on_a_gpu_the_clock_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(100))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(moments)

        def elapsed_time(self, end: "Event") -> float:
            return 1000.0 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: pytest.fail("the clock waits"))
    clock = StepClock(torch.device("cuda"))
    for activity in (Activity.data, Activity.forward, Activity.backward, Activity.forward, Activity.backward, Activity.update):
        clock.enter(activity)
    clock.enter(None)
    assert clock.split() == {Activity.data: 1.0, Activity.forward: 2.0, Activity.backward: 2.0, Activity.update: 1.0}
