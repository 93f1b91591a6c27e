"""Training in less memory: the papers' numbers, brute force, and what PyTorch really holds."""

from itertools import combinations

import pytest
import torch

from parlab import memory, models, training
from parlab.costs import memory as costs
from parlab.costs import optimizers, zero
from parlab.costs.tensor_parallel import Layer, activation_bytes

LAYERS = [Layer(1, 2048, 12288, 96), Layer(4, 128, 256, 8), Layer(2, 4096, 1024, 16)]
STEP = costs.Step(4, 256, 4, 1000, 128, 8)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_tensors_of_a_layer_are_the_papers(layer: Layer) -> None:
    """sbh(34 + 5as/h) with the input, and 34sbh if attention is fused (Table 2)."""
    whole = sum(tensor.bytes for tensor in costs.layer_tensors(layer)) + 2 * layer.numbers
    assert whole == pytest.approx(activation_bytes(layer))
    fused = sum(t.bytes for t in costs.layer_tensors(layer, fused=True)) + 2 * layer.numbers
    assert fused == activation_bytes(layer, recompute="selective")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("fused", [False, True])
def test_everything_but_the_last_product_is_recomputed(layer: Layer, fused: bool) -> None:
    last = 8 * layer.numbers * layer.hidden
    every = sum(tensor.flop for tensor in costs.layer_tensors(layer, fused=fused))
    assert every + last == costs.forward_flop(layer)


@pytest.mark.parametrize("layer", LAYERS)
def test_no_plan_beats_the_frontier(layer: Layer) -> None:
    tensors, plans = costs.layer_tensors(layer), costs.frontier(layer)
    assert plans[0].flop == 0
    assert plans[-1].bytes == 2 * layer.numbers
    assert [p.bytes for p in plans] == sorted({p.bytes for p in plans}, reverse=True)
    whole = activation_bytes(layer)
    for count in range(len(tensors) + 1):
        for dropped in combinations(tensors, count):
            kept = whole - sum(tensor.bytes for tensor in dropped)
            flop = sum(tensor.flop for tensor in dropped)
            assert any(p.bytes <= kept * (1 + 1e-9) and p.flop <= flop for p in plans)


def test_as_many_segments_as_the_root_of_the_layers() -> None:
    assert costs.best_segments(64, 1, 1) == 8
    assert costs.segments_peak(64, 8, 1, 1) == 16
    peaks = {k: costs.segments_peak(144, k, 9.0, 1.0) for k in (1, 12, 18, 36, 48, 72, 144)}
    assert min(peaks, key=peaks.get) == costs.best_segments(144, 9.0, 1.0) == 36
    assert costs.segments_peak(5, 2, 10, 1) == 2 + 3 * 10  # the longer segment counts
    with pytest.raises(ValueError, match="1 to 5 segments, not 6"):
        costs.segments_peak(5, 6, 1, 1)


def test_at_the_limit_an_offload_takes_as_long_as_the_layer() -> None:
    flop_per_second, bandwidth, s = 4e14, 25e9, 2048
    h = costs.hidden_to_offload(34, s, flop_per_second, bandwidth)
    computing = (24 * s * h * h + 4 * s * s * h) / flop_per_second
    assert 34 * s * h / bandwidth == pytest.approx(computing)
    assert costs.hidden_to_offload(2, 10**6, flop_per_second, bandwidth) == 0


def test_the_estimates_of_the_noise_are_exact_for_expected_norms() -> None:
    squared_norm, trace = 3.0, 40.0
    norms = [squared_norm + trace / batch for batch in (4, 64)]
    assert costs.noise(4, 64, *norms) == pytest.approx((squared_norm, trace))
    with pytest.raises(ValueError, match="the second larger"):
        costs.noise(4, 4, 1.0, 1.0)


def test_a_step_has_the_parameters_of_the_labs_gpt() -> None:
    config = models.GPTConfig(1000, sequence_length=128, hidden_size=256, layers=4, heads=4)
    shapes = [tuple(p.shape) for p in models.GPT(config).parameters()]
    assert sorted(STEP.shapes) == sorted(shapes)
    assert STEP.parameters == models.parameter_count(models.GPT(config))


@pytest.mark.parametrize("stage", zero.STAGES)
def test_the_model_states_of_a_step_are_zeros(stage: int) -> None:
    sizes = STEP.but(stage=stage, ranks=8).bytes()
    assert {kind: sizes[kind] for kind in ("parameters", "gradients", "optimizer_states")} == (
        pytest.approx(zero.model_states(STEP.parameters, 8, stage))
    )


def test_activations_of_a_step() -> None:
    layer, numbers = STEP.layer, STEP.layer.numbers
    assert STEP.activations() == 4 * activation_bytes(layer)
    assert STEP.but(fused=True).activations() == 4 * 34 * numbers
    assert STEP.but(keep=20.0).activations() == 4 * 20 * numbers
    again = STEP.but(fused=True, recompute=True)
    assert again.activations() == costs.segments_peak(4, 4, 34 * numbers, 2 * numbers)
    assert again.activations() - again.but(offload=True).activations() == 2 * 2 * numbers
    assert STEP.but(micro_batch=2).activations() == STEP.activations() / 4


def test_logits_of_a_step() -> None:
    assert STEP.logits() == 4 * 4 * 8 * 128 * 1000
    assert STEP.but(loss_tokens=64).logits() == 4 * (64 * 1000 + 8 * 128 * 256)
    assert STEP.total() == sum(STEP.bytes().values())


def test_workers_load_while_the_device_computes() -> None:
    assert [costs.loader_seconds(20, 90, workers) for workers in (0, 1, 3, 9)] == [110, 90, 30, 20]


def test_packing_keeps_every_sequence_whole() -> None:
    lengths = [5, 3, 8, 2, 2, 7, 1]
    rows = costs.pack(lengths, 8)
    assert sorted(length for row in rows for length in row) == sorted(lengths)
    assert all(sum(row) <= 8 for row in rows)
    assert rows == [[8], [7, 1], [5, 3], [2, 2]]
    with pytest.raises(ValueError, match="9 tokens does not fit into a row of 8"):
        costs.pack([9], 8)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("SGD", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("SGD with momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("Adam", torch.optim.Adam),
        ("Adafactor", torch.optim.Adafactor),
    ],
)
def test_optimizers_hold_what_the_formulas_say(name: str, make: training.MakeOptimizer) -> None:
    model = models.mlp(32)
    optimizer = make(model.parameters())
    images = torch.randn(8, 784)
    training.one_step(model, optimizer, images, torch.arange(8))
    shapes = [tuple(p.shape) for p in model.parameters()]
    counters = 4 * len(shapes) if name in ("Adam", "Adafactor") else 0
    held = memory.optimizer_bytes(optimizer) - counters
    assert held == optimizers.states_bytes(name, shapes)


def test_8_bit_states_have_a_scale_for_each_block_and_leave_small_tensors() -> None:
    assert optimizers.adam_8bit((64, 64)) == 2 * 4096 + 2 * 4 * 16
    assert optimizers.adam_8bit((4097,)) == 2 * 4097 + 2 * 4 * 17
    assert optimizers.adam_8bit((63, 65)) == 8 * 4095
    assert optimizers.adafactor((3, 4, 5)) == 4 * 3 * (4 + 5)


def test_bytes_per_parameter_are_those_of_zero() -> None:
    shapes = STEP.shapes
    for ranks in (1, 8, 64):
        stage = min(ranks - 1, 1)
        mixed = optimizers.bytes_per_parameter("Adam", shapes, ranks, master=True)
        assert mixed == pytest.approx(zero.total(1, ranks, stage))
        plain = optimizers.bytes_per_parameter("SGD with momentum", shapes, ranks)
        assert plain == pytest.approx(zero.total(1, ranks, stage, zero.FLOAT32_MOMENTUM))
    with pytest.raises(ValueError, match="use one of SGD, SGD with momentum, Adam"):
        optimizers.states_bytes("Lion", shapes)
