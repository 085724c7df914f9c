"""The report's texts in English and Chinese."""

from collections.abc import Mapping
from typing import Any

from glmexp.config.choices import Language
from glmexp.dsconfig.effect import Text

WORDS: Mapping[str, Text] = {
    "title": {"en": "Sweep {name}", "zh": "扫描 {name}"},
    "answer": {"en": "Answer", "zh": "结论"},
    "trials": {"en": "Trials", "zh": "试验"},
    "states": {"en": "States", "zh": "状态统计"},
    "plots": {"en": "Plots", "zh": "图"},
    "how": {"en": "How it was decided", "zh": "如何选出"},
    "effects": {"en": "Effect of each knob", "zh": "各参数的影响"},
    "pareto": {"en": "Speed against {axis}", "zh": "{axis}与速度"},
    "predicted": {"en": "Predicted beside measured", "zh": "预测与实测"},
    "count": {"en": "{count} trials: {states}", "zh": "共 {count} 次试验：{states}"},
    "one": {"en": "1 trial: {states}", "zh": "共 1 次试验：{states}"},
    "none yet": {"en": "no trial has ended yet", "zh": "还没有结束的试验"},
    "running": {"en": "{count} without a result yet: running, or cut off", "zh": "{count} 次尚无结果：正在运行，或被中断"},
    "unreadable": {
        "en": "{count} left out, result.json cannot be read: {names}",
        "zh": "略去 {count} 次，result.json 无法读取：{names}",
    },
    "recommended": {"en": "Recommended: {trial} with {figures}.", "zh": "推荐：{trial}，{figures}。"},
    "settings": {"en": "It sets {settings}.", "zh": "所选设置：{settings}。"},
    "throughput": {
        "en": "Objective throughput: the highest tokens/s of {count} complete trial(s){within}.",
        "zh": "目标 throughput：{count} 次完成的试验中{within} tokens/s 最高者。",
    },
    "memory": {
        "en": "Objective memory: the lowest {axis} peak of {count} complete trial(s){within}.",
        "zh": "目标 memory：{count} 次完成的试验中{within}{axis}峰值最低者。",
    },
    "by loss": {
        "en": "What was swept ({keys}) changes neither speed nor memory: "
        "the lowest last loss of {count} complete trial(s){within}.",
        "zh": "所扫描的 {keys} 不影响速度与内存：{count} 次完成的试验中{within}最后 loss 最低者。",
    },
    "lowest loss": {
        "en": "Speed says nothing about {keys}: the lowest last loss is {loss:.4f}, of {trial}.",
        "zh": "速度不能说明 {keys} 的好坏：最后 loss 最低的是 {trial}，{loss:.4f}。",
    },
    "left out": {"en": "{count} left out: {why}.", "zh": "略去 {count} 次：{why}。"},
    "exploded": {
        "en": "the loss ended more than {nats:g} nat above its start in {names}",
        "zh": "最后 loss 比开始时高出 {nats:g} 以上：{names}",
    },
    "idle": {"en": "more than {share:.0%} of the steps were skipped in {names}", "zh": "跳过的步数超过 {share:.0%}：{names}"},
    "all ruined": {
        "en": "No training went well: each skipped more than {share:.0%} of its steps, or its loss ended more than "
        "{nats:g} above its start. This one skipped the fewest; do not train with it.",
        "zh": "没有一次训练正常：都跳过了超过 {share:.0%} 的步数，或最后 loss 比开始时高出 {nats:g} 以上。"
        "此项跳过最少，请勿用于训练。",
    },
    "otherwise": {
        "en": "Measured otherwise ({keys}) than this one, as in another session: {count} of them; compare with care.",
        "zh": "其中 {count} 次的测量设置与此项不同（{keys}），例如来自另一次运行：比较时请留意。",
    },
    "within": {
        "en": " that fit {gib:g} GiB (peak with cached blocks, and {outside:g} GiB for the CUDA context and the like)",
        "zh": "能放入 {gib:g} GiB（峰值含缓存块，另加 CUDA 上下文等 {outside:g} GiB）且",
    },
    "near": {
        "en": "{trial} has {speed:,.0f} tokens/s, within the error of both; more {steps} tell them apart.",
        "zh": "{trial} 为 {speed:,.0f} tokens/s，二者之差在测量误差内；增大 {steps} 才能分辨。",
    },
    "tie": {
        "en": "Of {count} that are equally fast, this one has the lowest memory peak.",
        "zh": "{count} 次同样快，此项内存峰值最低。",
    },
    "tie of skipped": {
        "en": "Of {count} that are equally fast, this one skipped the fewest steps.",
        "zh": "{count} 次同样快，此项跳过的步数最少。",
    },
    "tie of loss": {"en": "{count} of them have this last loss.", "zh": "其中 {count} 次的最后 loss 相同。"},
    "no limit on host": {
        "en": "No GPU memory was measured, so host memory is compared and sweep.gpu_memory_gib={gib:g} is not applied.",
        "zh": "没有测得显存，因此比较主机内存，sweep.gpu_memory_gib={gib:g} 不起作用。",
    },
    "host": {
        "en": "No GPU memory was measured, so host memory is compared.",
        "zh": "没有测得显存，因此比较主机内存。",
    },
    "nothing fits": {"en": "No setting fits{limit}: {states}.", "zh": "没有设置能放入{limit}：{states}。"},
    "limit": {"en": " {gib:g} GiB", "zh": " {gib:g} GiB"},
    "card": {"en": "", "zh": "现有设备"},
    "nothing complete": {"en": "No trial is complete, so nothing is recommended.", "zh": "没有完成的试验，因此没有推荐。"},
    "nothing measured": {"en": "Nothing was measured, so nothing is recommended.", "zh": "没有测得任何数据，因此没有推荐。"},
    "least": {
        "en": "The least memory seen: {gib:.1f} GiB by {trial}{tight}.",
        "zh": "所见最低内存：{trial} 的 {gib:.1f} GiB{tight}。",
    },
    "when it ended": {"en": ", when it ran out", "zh": "（内存不足时）"},
    "cached": {
        "en": ", {reserved:.1f} with cached blocks, and {outside:g} GiB for the CUDA context and the like",
        "zh": "，含缓存块 {reserved:.1f} GiB，另加 CUDA 上下文等 {outside:g} GiB",
    },
    "next memory": {
        "en": "Next: a smaller batch.micro, activation=checkpoint, offload=cpu, method=lora, or a larger sweep.gpu_memory_gib.",
        "zh": "下一步：减小 batch.micro，activation=checkpoint，offload=cpu，method=lora，或增大 sweep.gpu_memory_gib。",
    },
    "next oom": {
        "en": "Next: a smaller batch.micro, activation=checkpoint, offload=cpu or method=lora.",
        "zh": "下一步：减小 batch.micro，activation=checkpoint，offload=cpu 或 method=lora。",
    },
    "next oom_host": {
        "en": "Next: offload=none, fewer launch.ranks, or a machine with more memory.",
        "zh": "下一步：offload=none，减少 launch.ranks，或换内存更大的机器。",
    },
    "next reason": {"en": "Next: read why {trial} is {state}: {reason}", "zh": "下一步：查看 {trial} 为何是 {state}：{reason}"},
    "next check": {
        "en": "Next: the verb measure with --multirun and the same overrides.",
        "zh": "下一步：用相同的参数运行动词 measure 和 --multirun。",
    },
    "run it": {
        "en": "Run it: copy {file} to DIR/experiment/best.yaml, then python -m glmexp --config-dir DIR experiment=best",
        "zh": "运行：把 {file} 复制为 DIR/experiment/best.yaml，然后 python -m glmexp --config-dir DIR experiment=best",
    },
    "json": {
        "en": "For other programs: {plain} is exactly what DeepSpeed got; {hf} is for the HF Trainer, to be given {arguments}.",
        "zh": "供其他程序使用：{plain} 即 DeepSpeed 所用的配置；{hf} 用于 HF Trainer，并传入 {arguments}。",
    },
    "struck": {
        "en": "Figures are struck out where another trial is no slower, takes no more memory, and is better in one of the two.",
        "zh": "数字带删除线：存在另一试验，速度不低、内存不多，且至少一项更好。",
    },
    "cards": {
        "en": "Fits: the peak with cached blocks and {outside:g} GiB for the CUDA context and the like are within the card; "
        "tight: only without the cached blocks.",
        "zh": "能否放入：峰值（含缓存块）加 CUDA 上下文等 {outside:g} GiB 不超过该卡；紧张：不含缓存块时才放得下。",
    },
    "paired": {
        "en": "Ratios between trials that differ in this knob alone: the geometric mean, and the range over the pairs. "
        "Grey bars: the range includes no change. Hatched: some trials with this value have no other one to compare.",
        "zh": "只比较仅此参数不同的试验：几何平均，括号内为各对的范围。灰色：范围包含不变。斜线：部分试验没有可比的另一次。",
    },
    "pairless": {"en": "no pair", "zh": "无可比的一对"},
    "knob": {"en": "knob", "zh": "参数"},
    "against": {"en": "against", "zh": "相对于"},
    "pairs": {"en": "pairs", "zh": "对数"},
    "not complete": {"en": "not complete", "zh": "未完成"},
    "not set": {"en": "not set", "zh": "未设置"},
    "of": {"en": "{count} of {all} ({states})", "zh": "{count}/{all}：{states}"},
    "trial": {"en": "trial", "zh": "试验"},
    "state": {"en": "state", "zh": "状态"},
    "reason": {"en": "reason", "zh": "原因"},
    "speed": {"en": "tokens/s", "zh": "tokens/s"},
    "step": {"en": "s a step", "zh": "每步秒数"},
    "spread": {"en": "spread (s)", "zh": "波动（秒）"},
    "gpu": {"en": "GPU GiB", "zh": "显存 GiB"},
    "reserved": {"en": "with cached blocks", "zh": "含缓存块"},
    "host_gib": {"en": "host GiB", "zh": "主机内存 GiB"},
    "loss": {"en": "last loss", "zh": "最后 loss"},
    "skipped_steps": {"en": "skipped steps", "zh": "跳过步数"},
    "mfu": {"en": "MFU", "zh": "MFU"},
    "ranks": {"en": "ranks", "zh": "rank 数"},
    "predicted_gib": {"en": "predicted GPU GiB", "zh": "预测显存 GiB"},
    "seconds": {"en": "wall s", "zh": "总秒数"},
    "fits": {"en": "fits {card}", "zh": "{card} 能放入"},
    "yes": {"en": "yes", "zh": "能"},
    "tight": {"en": "tight", "zh": "紧张"},
    "no": {"en": "no", "zh": "不能"},
    "complete": {"en": "complete", "zh": "完成"},
    "invalid": {"en": "invalid", "zh": "无效"},
    "skipped": {"en": "skipped", "zh": "略过"},
    "oom": {"en": "oom", "zh": "显存不足"},
    "oom_host": {"en": "oom_host", "zh": "主机内存不足"},
    "diverged": {"en": "diverged", "zh": "发散"},
    "timeout": {"en": "timeout", "zh": "超时"},
    "interrupted": {"en": "interrupted", "zh": "被中断"},
    "killed": {"en": "killed", "zh": "被强制结束"},
    "failed": {"en": "failed", "zh": "失败"},
    "GPU memory": {"en": "GPU memory", "zh": "显存"},
    "host memory": {"en": "host memory", "zh": "主机内存"},
    "front": {"en": "Pareto front", "zh": "帕累托前沿"},
    "dominated": {"en": "dominated", "zh": "被支配"},
    "beyond": {"en": "does not fit {gib:g} GiB, or ruined training", "zh": "放不进 {gib:g} GiB，或训练失常"},
    "spoiled": {"en": "ruined training", "zh": "训练失常"},
    "the recommended": {"en": "recommended", "zh": "推荐"},
    "measured": {"en": "measured", "zh": "实测"},
    "equal": {"en": "equal", "zh": "相等"},
    "percent": {"en": "change in %", "zh": "变化（%）"},
    "filter": {"en": "Filter: words that a row must hold", "zh": "筛选：行中须含的词"},
    "shown": {"en": "{count} rows shown", "zh": "显示 {count} 行"},
    "sort": {
        "en": "Click a column's head to sort by it, a state to hide its rows.",
        "zh": "点击表头排序，点击状态隐藏相应的行。",
    },
}


def say(lang: Language, key: str, **values: Any) -> str:
    """A text in the language, with its figures filled in."""
    return WORDS[key][lang.value].format(**values)
