"""Where the word "auto" is filled in before DeepSpeed sees it, when the Hugging Face Trainer reads the config.

transformers/integrations/deepspeed.py (trainer_config_process, trainer_config_finalize) and, for the keys that are not the
Trainer's own arguments, accelerate/utils/dataclasses.py (DeepSpeedPlugin.__post_init__).
"""

from collections.abc import Mapping

FILLED: Mapping[str, str] = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "world size x per_device_train_batch_size x gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.betas": "[adam_beta1, adam_beta2]",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_min_lr": "0",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "scheduler.params.warmup_num_steps": "warmup_steps, at least 1",
    "scheduler.params.total_num_steps": "the number of training steps",
    "fp16.enabled": "fp16",
    "bf16.enabled": "bf16",
    "zero_optimization.reduce_bucket_size": "hidden_size squared",
    "zero_optimization.stage3_prefetch_bucket_size": "0.9 x hidden_size squared",
    "zero_optimization.stage3_param_persistence_threshold": "10 x hidden_size",
    "zero_optimization.stage": "accelerate's zero_stage, 2 where that is not set",
    "zero_optimization.offload_optimizer.device": 'accelerate\'s offload_optimizer_device, "none" where that is not set',
    "zero_optimization.offload_optimizer.nvme_path": 'accelerate\'s offload_optimizer_nvme_path, "none" where that is not set',
    "zero_optimization.offload_param.device": 'accelerate\'s offload_param_device, "none" where that is not set',
    "zero_optimization.offload_param.nvme_path": 'accelerate\'s offload_param_nvme_path, "none" where that is not set',
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "accelerate's zero3_save_16bit_model",
}
"""Key -> what the Trainer puts there."""

OVERWRITTEN = ("steps_per_print",)
"""Keys that accelerate sets whatever they hold."""
