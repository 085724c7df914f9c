"""One rank that compares the gradients with and without activation checkpoints, for many configurations in one process.

Arguments: a JSON list of lists of overrides. Prints a JSON list: for each the number of trained tensors, the largest norm of
a gradient, the largest norm of a difference from the one without checkpoints, and how often a layer computed, without and with.
"""

import json
import sys
from dataclasses import replace

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch.nn.functional import cross_entropy

from glmexp.config import compose
from glmexp.dsconfig import Machine, build
from glmexp.models import build_model
from glmexp.models.method import apply
from glmexp.models.quantised import quantization
from glmexp.train.engine import partition_on_load, start

CPU = torch.device("cpu")


def gradients(config, world, rank):
    """(name -> whole gradient of what is trained, forward passes of the last layer) of one micro batch; dropout is seeded."""
    ds_config = build(config, Machine(world, "cpu"))
    packing = quantization(config.method, torch.float32)
    partition = None if packing else partition_on_load(ds_config)
    model = build_model(config.model, torch.float32, "sdpa", 0, CPU, packing)
    torch.manual_seed(0)
    engine = start(apply(model, config.method), config, ds_config, steps=1)
    del partition
    passes = []
    engine.module.get_decoder().layers[-1].mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    torch.manual_seed(rank)
    ids = torch.randint(1000, (2, 24))
    engine.train()
    logits = engine(input_ids=ids, use_cache=False).logits
    engine.backward(cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
    trained = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
    found = {name: safe_get_full_grad(p).detach().clone() for name, p in trained}
    assert all(p.grad is None for p in engine.module.parameters() if not p.requires_grad)
    engine.destroy()
    return found, len(passes)


def main():
    deepspeed.init_distributed("gloo")
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    answers = []
    for overrides in json.loads(sys.argv[1]):
        config = compose(["model=tiny", "precision=fp32", f"batch.total={2 * world}", *overrides]).config
        plain, once = gradients(config, world, rank)
        again, twice = gradients(replace(config, activation=replace(config.activation, checkpoint=True)), world, rank)
        assert plain.keys() == again.keys()
        norm = max(float(gradient.norm()) for gradient in plain.values())
        differences = [float((again[name] - gradient).norm()) for name, gradient in plain.items()]
        answers.append([len(plain), norm, max(differences), [once, twice]])
    if rank == 0:
        print(json.dumps(answers))


if __name__ == "__main__":
    main()
