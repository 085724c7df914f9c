"""Which keys of DeepSpeed's ``zero_optimization`` a ZeRO stage reads."""

STAGES = {
    "reduce_bucket_size": (1, 2, 3),
    "overlap_comm": (1, 2, 3),
    "contiguous_gradients": (1, 2, 3),
    "reduce_scatter": (1, 2, 3),
    "allgather_partitions": (1, 2, 3),
    "allgather_bucket_size": (1, 2, 3),
    "round_robin_gradients": (1, 2),
    "sub_group_size": (3,),
    "stage3_prefetch_bucket_size": (3,),
    "stage3_param_persistence_threshold": (3,),
    "stage3_max_live_parameters": (3,),
    "stage3_max_reuse_distance": (3,),
    "stage3_gather_16bit_weights_on_model_save": (3,),
    "zero_hpz_partition_size": (3,),
    "zero_quantized_weights": (3,),
    "zero_quantized_nontrainable_weights": (3,),
    "zero_quantized_gradients": (3,),
}
"""Key -> stages, read in DeepSpeed 0.19.8 (runtime/zero/stage_1_and_2.py, stage3.py). It accepts each key at any stage and
ignores it elsewhere. ``allgather_*`` are only kept because published recipes hold them: no stage gathers by them."""
