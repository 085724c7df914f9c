"""Trials for the tests of the worker: composed here, run by forks of one preloaded process, or in plain PyTorch."""

import json
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from glmexp.config import Config, compose, load, save
from glmexp.data import Samples, batches, prepare
from glmexp.data.order import Order
from glmexp.dsconfig import Machine, build
from glmexp.models import build_model, load_tokenizer, locate
from glmexp.models.method import apply
from glmexp.models.prompts import prompts_for
from glmexp.models.quantised import quantization
from glmexp.train.schedule import lr_at
from glmexp.trial.record import CONFIG, DS_CONFIG, METRICS, RankRecord, read_rank

ROOT = Path(__file__).parents[2]

MOVING = [
    "model=tiny", "train.max_steps=8", "optimizer.lr=1e-3", "scheduler.warmup_steps=0", "precision=fp32",
    "data.max_length=72", "train.save_weights=false",
]  # fmt: skip
"""A run whose weights move at every step, in fp32."""


@dataclass
class Trial:
    folder: Path
    codes: list[int]

    @property
    def config(self) -> Config:
        return load(self.folder / CONFIG)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / METRICS).read_text().splitlines()]

    @property
    def losses(self) -> list[float]:
        return [line["loss"] for line in self.metrics]

    @property
    def norms(self) -> list[float]:
        return [line["grad_norm"] for line in self.metrics]

    @property
    def log(self) -> str:
        return (self.folder / "train.log").read_text()

    def record(self, rank: int = 0) -> RankRecord:
        found = read_rank(self.folder, rank)
        assert found is not None, self.log
        return found

    def ok(self) -> "Trial":
        assert set(self.codes) == {0}, f"{self.codes}\n{self.log[-3000:]}"
        return self


@dataclass
class Plain:
    model: torch.nn.Module
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)


RunTrial = Callable[..., Trial]
RunCommand = Callable[..., Any]
"""The ``glmexp`` fixture."""


def sample_file(path: Path, count: int = 24) -> Path:
    """Prompts and answers of different lengths."""
    kinds, colours = ["上衣", "裙", "裤", "鞋"], "红白蓝黑"
    rows = [
        {
            "content": f"{colours[i % 4]}{kinds[i % 4]}{i}",
            "summary": f"这款{colours[i % 4]}色的{kinds[i % 4]}，第{i}号，" + "做工细致，" * (i % 3) + "穿着很舒服。",
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_trial(folder: Path, overrides: list[str], ranks: int = 1) -> Path:
    """A trial folder as the parent leaves it for the ranks, on the CPU."""
    folder.mkdir(parents=True, exist_ok=True)
    if not any(item.startswith("data.") and item.split("=")[0] in ("data.path", "data.source") for item in overrides):
        overrides = [*overrides, f"data.path={sample_file(folder.parent / 'train.jsonl')}"]
    config = compose(overrides).config
    save(config, folder / CONFIG)
    (folder / DS_CONFIG).write_text(json.dumps(build(config, Machine(ranks, "cpu"))))
    return folder


def environments(ranks: int) -> list[dict[str, str]]:
    """What a launcher sets, a dict a rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def start(server: subprocess.Popen[str], folder: Path, ranks: int = 1, extra: dict[str, str] | None = None) -> Trial:
    """Runs the ranks of a folder that is there."""
    orders = [{**environment, **(extra or {})} for environment in environments(ranks)]
    server.stdin.write(json.dumps({"folder": str(folder), "environments": orders}) + "\n")
    server.stdin.flush()
    return Trial(folder, json.loads(server.stdout.readline()))


def train_plainly(folder: Path) -> Plain:
    """Trains a folder's config in plain PyTorch: a global batch of 8 at once, AdamW, gradient clipping; fp32."""
    config = load(folder / CONFIG)
    tokenizer = load_tokenizer(locate(config.model), config.model.template)
    packing = quantization(config.method, torch.float32)
    model = build_model(config.model, torch.float32, "eager", config.train.seed, torch.device("cpu"), packing)
    vocabulary = model.config.vocab_size
    torch.manual_seed(config.train.seed)
    model = apply(model, config.method)
    prepare(config.data, prompts_for(tokenizer), vocabulary, config.train.seed, folder)
    wanted = config.optimizer
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=wanted.lr,
        betas=tuple(wanted.betas),
        eps=wanted.eps,
        weight_decay=wanted.weight_decay,
    )
    steps = config.train.max_steps
    found = Plain(model)
    samples = Samples.open(folder)
    order = Order(len(samples), config.train.seed)
    stream = batches(samples, order, micro=8, accumulation=1, rank=0, world=1, pad_id=0, steps=steps)
    for step, (batch,) in enumerate(stream, start=1):
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), batch.labels[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        found.losses.append(loss.item())
        found.norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.grad_clip)))
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, steps, wanted.lr, config.scheduler)
        optimizer.step()
    return found
