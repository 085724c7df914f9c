"""How an export is loaded and asked: a program for its model card that works as it stands, run in the export's folder."""

from pathlib import Path

from glmexp.config.choices import Init
from glmexp.config.measure import initialisation
from glmexp.config.schema import Config
from glmexp.models.source import local_folder

QUESTION = "你好"
ROLES = """number = tokenizer.convert_tokens_to_ids
text = [*tokenizer.encode("\\n", add_special_tokens=False), *tokenizer.encode("{question}", add_special_tokens=False)]
ids = torch.tensor([[*number(["[gMASK]", "SOP", "<|user|>"]), *text, number("<|assistant|>")]])"""
IDS = {
    "chatglm2": 'ids = tokenizer("[Round 1]\\n\\n问：{question}\\n\\n答：", return_tensors="pt").input_ids',
    "chatglm3": ROLES.replace("SOP", "sop"),
    "glm4": ROLES.replace("SOP", "<sop>"),
    "chat": """messages = [{{"role": "user", "content": "{question}"}}]
text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids""",
    "plain": 'ids = tokenizer("{question}\\n", return_tensors="pt").input_ids',
}
"""Prompt format -> lines that make ``ids`` [1, tokens], as the model was asked in training."""


def usage(config: Config, layout: str, template: str | None) -> str:
    """Markdown: what it takes, and a Python program, or why there is none. Arguments as of ``card``."""
    if layout != "model" and layout != "original" and initialisation(config) is Init.random:
        return (
            "The base model's random weights are in no file, so this works from the folder of its run alone:\n"
            "`python -m glmexp predict RUN`."
            + (" `python -m glmexp export RUN merge=true` writes a model of its own." if layout == "adapter" else "")
        )
    needs, imports, loads = _loading(config, layout)
    if template is None:
        return f"{needs}\n\n{_program(imports, loads)}"
    torch = ["import torch"] if "torch." in IDS[template] else []
    if "tokenizer" not in loads:
        loads = f"tokenizer = AutoTokenizer.from_pretrained(folder)\n{loads}"
    asks = [
        IDS[template].format(question=QUESTION),
        "answer = model.generate(input_ids=ids, attention_mask=ids.new_ones(ids.shape), max_new_tokens=128, do_sample=False)",
        "print(tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True))",
    ]
    return f"{needs}\n\n{_program([*torch, *imports], loads, *asks)}"


def _loading(config: Config, layout: str) -> tuple[str, list[str], str]:
    """What it takes, the imports, and the lines that make ``model`` (and ``tokenizer``, where AutoTokenizer cannot)."""
    tokenizer = "from transformers import AutoTokenizer"
    if layout == "model":
        return (
            "Plain transformers load it:",
            ["from transformers import AutoModelForCausalLM, AutoTokenizer"],
            "model = AutoModelForCausalLM.from_pretrained(folder)",
        )
    if layout == "original":
        return (
            "glmexp loads it as below. The original code does too, with `trust_remote_code=True`, once the `.py` files of the\n"
            "release (`modeling_chatglm.py` and so on, which are not copied) lie beside it.",
            ["from glmexp.models import load_model, load_tokenizer"],
            "tokenizer = load_tokenizer(folder)\nmodel = load_model(folder)",
        )
    if layout == "original_prefix":
        return (
            "The official `main.py` takes this folder as `--ptuning_checkpoint`, with its `--pre_seq_len`. glmexp puts the\n"
            "prefix onto the base model, too:",
            ["from glmexp.models import load_model, load_prefix, load_tokenizer"],
            f'tokenizer = load_tokenizer(folder)\nbase = "{base_words(config)}"  # the base model, or its folder\n'
            "model = load_prefix(load_model(base), folder)",
        )
    if layout == "prefix":
        return (
            "Neither transformers nor PEFT know this prefix; glmexp puts it onto the base model that prefix_config.json names:",
            ["import json", tokenizer, "from glmexp.models import load_model, load_prefix"],
            'base = json.load(open(f"{folder}/prefix_config.json"))["base_model_name_or_path"]\n'
            "model = load_prefix(load_model(base), folder)",
        )
    base = "base = PeftConfig.from_pretrained(folder).base_model_name_or_path\n"
    if needs_glmexp(config):
        return (
            "PEFT loads it onto the base model that adapter_config.json names; it is in the original layout, which\n"
            "glmexp loads:",
            ["from peft import PeftConfig, PeftModel", tokenizer, "from glmexp.models import load_model"],
            base + "model = PeftModel.from_pretrained(load_model(base), folder)",
        )
    return (
        "PEFT loads it onto the base model that adapter_config.json names:",
        ["from peft import PeftConfig, PeftModel", "from transformers import AutoModelForCausalLM, AutoTokenizer"],
        base + "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)",
    )


def base_words(config: Config) -> str:
    """The base model by its hub id, or by the name of its folder."""
    return config.model.path if local_folder(config.model.path) is None else Path(config.model.path).name


def needs_glmexp(config: Config) -> bool:
    """Whether plain transformers cannot load the base model: the original layout needs its code, or glmexp."""
    from glmexp.models import describe

    return describe(config.model).original


def _program(imports: list[str], *lines: str) -> str:
    return "\n".join(["```python", *imports, "", 'folder = "."  # this one', *lines, "```"])
