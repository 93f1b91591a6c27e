"""Checks of lab 03, ZeRO: one module for each exercise.

_models: the models that they train. _training: steps of a learner's stage. _steps: compares with
the same steps on one rank. _whole_layers: stages that shard parameters. _predictions: numbers.
"""

from parlab.checks.base.collective import show_values
from parlab.checks.zero.clip_shards import clip_shards
from parlab.checks.zero.flat_shard import flat_shard
from parlab.checks.zero.memory_by_kind import memory_by_kind
from parlab.checks.zero.offloaded_adam import offloaded_adam
from parlab.checks.zero.predict_stages import predict_stages
from parlab.checks.zero.predict_traffic import predict_traffic
from parlab.checks.zero.prefetch import prefetch
from parlab.checks.zero.stage_1 import stage_1
from parlab.checks.zero.stage_2 import stage_2
from parlab.checks.zero.stage_3 import stage_3

__all__ = [
    "clip_shards",
    "flat_shard",
    "memory_by_kind",
    "offloaded_adam",
    "predict_stages",
    "predict_traffic",
    "prefetch",
    "show_values",
    "stage_1",
    "stage_2",
    "stage_3",
]
