"""What a device or a machine lacks for an option, found out without torch."""

import os
from pathlib import Path

import pytest

from glmexp.config import compose
from glmexp.dsconfig import Machine
from glmexp.trial import lacking


def test_deepcompile_needs_a_newer_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["kernels=deepcompile"]).config
    monkeypatch.setattr(lacking.metadata, "version", lambda name: "2.5.1+cu124")
    (told,) = lacking.lacking(config, Machine(1, "gpu"), [], 1)
    assert "kernels=deepcompile needs PyTorch 2.6, and this is 2.5" in told
    monkeypatch.setattr(lacking.metadata, "version", lambda name: "2.10.0+cu128")
    assert list(lacking.lacking(config, Machine(1, "gpu"), [], 1)) == []


def test_qlora_is_for_a_gpu_with_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["method=qlora"]).config
    (told,) = lacking.lacking(config, Machine(1, "cpu"), [], 1)
    assert "method=qlora does not run on the CPU" in told
    assert "method=lora" in told
    monkeypatch.setattr(lacking, "find_spec", lambda name: None)
    (told,) = lacking.lacking(config, Machine(1, "gpu"), [], 1)
    assert "pip install 'glmexp[qlora]'" in told
    monkeypatch.setattr(lacking, "find_spec", lambda name: object())
    assert list(lacking.lacking(config, Machine(1, "gpu"), [], 1)) == []


def test_int4_gradients_are_for_several_nodes() -> None:
    config = compose(["zero=stage3_zeropp"]).config
    assert len(list(lacking.lacking(config, Machine(8, "gpu"), [], 1))) == 1
    assert list(lacking.lacking(config, Machine(16, "gpu"), [], 2)) == []


def compiler(folder: Path, code: int) -> str:
    """A compiler that ends with ``code`` and leaves its arguments in a file beside it."""
    script = folder / f"cc{code}"
    script.write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\nexit {code}\n')
    script.chmod(0o755)
    return str(script)


def test_libaio_is_there_if_a_program_with_it_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-I/opt/aio/include")
    monkeypatch.setenv("LDFLAGS", "-L/opt/aio/lib")
    monkeypatch.setenv("CC", compiler(tmp_path, 0))
    assert lacking.has_libaio()
    arguments = (tmp_path / "arguments").read_text().split()
    assert {"-I/opt/aio/include", "-L/opt/aio/lib", "-laio"} <= set(arguments)
    monkeypatch.setenv("CC", compiler(tmp_path, 1))
    assert not lacking.has_libaio()
    monkeypatch.setenv("CC", str(tmp_path / "no compiler at all"))
    assert not lacking.has_libaio()


def test_nvme_needs_a_folder_that_can_be_written_and_libaio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["zero=stage3", "offload=nvme", f"offload.nvme_path={tmp_path}"]).config
    monkeypatch.setenv("CC", compiler(tmp_path, 0))
    assert list(lacking.lacking_nvme(config)) == []
    monkeypatch.setenv("CC", compiler(tmp_path, 1))
    (told,) = lacking.lacking_nvme(config)
    assert "offload=nvme needs libaio" in told
    assert "libaio-dev" in told
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in next(lacking.lacking_nvme(config))
    assert list(lacking.lacking_nvme(compose(["offload=cpu"]).config)) == []


def test_check_warns_of_a_probed_device_and_refuses_one_that_was_asked_for(glmexp):
    probed = glmexp("check", "kernels=deepcompile", env={"CUDA_VISIBLE_DEVICES": ""})
    assert probed.code == 0, probed.err
    assert "warning: kernels=deepcompile does not run on the CPU" in probed.err
    asked = glmexp("check", "kernels=deepcompile", "launch.device=cpu")
    assert asked.code == 2
    assert "kernels=deepcompile does not run on the CPU" in asked.err
    assert glmexp("check", "kernels=deepcompile", "launch.device=gpu").code == 0
