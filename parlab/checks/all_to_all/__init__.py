"""Checks of lab 09, experts and long contexts: one module for each exercise."""

from parlab.checks.all_to_all.average_gradients import average_gradients
from parlab.checks.all_to_all.balance_loss import balance_loss
from parlab.checks.all_to_all.combine import combine
from parlab.checks.all_to_all.dispatch import dispatch
from parlab.checks.all_to_all.exchange import exchange
from parlab.checks.all_to_all.expert_parallel_mlp import expert_parallel_mlp
from parlab.checks.all_to_all.merge import merge
from parlab.checks.all_to_all.pairwise_all_to_all import pairwise_all_to_all
from parlab.checks.all_to_all.predict_context_bytes import predict_context_bytes
from parlab.checks.all_to_all.predict_expert_bytes import predict_expert_bytes
from parlab.checks.all_to_all.ring_attention import ring_attention
from parlab.checks.all_to_all.route import route
from parlab.checks.all_to_all.ulysses_attention import ulysses_attention
from parlab.checks.all_to_all.uneven_all_to_all import uneven_all_to_all
from parlab.checks.all_to_all.zigzag_positions import zigzag_positions
from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, sent, turned, within_rounds

__all__ = [
    "average_gradients",
    "balance_loss",
    "combine",
    "dispatch",
    "exchange",
    "expert_parallel_mlp",
    "merge",
    "no_messages",
    "pairwise_all_to_all",
    "predict_context_bytes",
    "predict_expert_bytes",
    "ring_attention",
    "route",
    "sent",
    "show_values",
    "turned",
    "ulysses_attention",
    "uneven_all_to_all",
    "within_rounds",
    "zigzag_positions",
]
