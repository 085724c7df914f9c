"""glmexp: compose, check, run and compare DeepSpeed fine-tuning experiments."""

__version__ = "0.1.0"
