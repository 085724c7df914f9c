"""A Hugging Face model folder that is no GLM: a small random Llama with a byte-level tokenizer and a chat template."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models.test_chat_template import CHATML, make


def write_chat_model(folder: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files."""
    tokenizer = make(CHATML)
    torch.manual_seed(0)
    size = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **size))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
