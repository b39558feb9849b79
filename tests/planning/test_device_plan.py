"""What lies on a device: it fits, it grows with the memory, and what is left stays in DRAM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashllm.errors import UsageError
from flashllm.flash.tensor_table import HEAD
from flashllm.options import ModelOptions
from flashllm.planning.device_plan import matrix_bytes, placed_bytes
from flashllm.planning.plan import Plan, make_plan
from flashllm.planning.release import slots_without
from flashllm.planning.sizes import Sizes
from flashllm.units import MIB
from tests.support.specs import SPEC

WIDE = replace(SPEC, d_model=1024, embed_dim=1024, n_heads=16, n_kv_heads=16, d_ffn=4096)
STRIDE = 4096
SIZES = Sizes(
    interpreter=200 * MIB, embeddings=2 * MIB, attention=64 * MIB, predictors=MIB, stride=STRIDE
)
CEILING = 395 * MIB


def planned(nbytes: int | None, **changes: object) -> Plan:
    options = ModelOptions(memory=CEILING, select="oracle", context=64)
    if nbytes is not None:
        options = options.having(device="cuda", device_memory=nbytes)
    return make_plan(WIDE, SIZES, options.having(**changes))  # type: ignore[arg-type]


def least() -> int:
    with pytest.raises(UsageError, match="is too small"):
        planned(1)
    device = planned(1 << 40).device
    assert device is not None
    return device.smallest_bytes


def test_it_fits_and_more_memory_holds_more() -> None:
    smallest, sizes = least(), matrix_bytes(WIDE)
    with pytest.raises(UsageError, match="the least that is of use"):
        planned(smallest - 1)
    before = None
    for more in (0, 1, 9 * MIB, 40 * MIB, 64 * MIB, 80 * MIB, 1 << 40):
        plan = planned(smallest + more)
        device = plan.device
        assert device is not None
        assert sum(device.split.values()) <= smallest + more
        assert device.split["matrices"] == sum(sizes[name] for name in device.matrices) > 0
        assert device.split["slots"] == sum(device.slots) * STRIDE
        assert device.realised.wg <= device.requested.wg + 1e-12
        assert sum(plan.split.values()) <= CEILING
        if before is not None:
            assert device.realised.wg >= before.realised.wg
            assert device.slot_layers >= before.slot_layers
        before = device
    assert before is not None
    assert before.realised.cg == 1
    assert before.slot_layers == WIDE.bundled_layers
    assert HEAD in before.matrices


def test_dram_has_what_is_not_there() -> None:
    plain, whole = planned(None), planned(1 << 40)
    assert plain.device is None
    assert whole.device is not None
    left_out = placed_bytes(WIDE, whole.device.matrices)
    assert whole.split["attention"] == plain.split["attention"] - left_out
    assert whole.split["kv"] == plain.split["kv"] - whole.device.split["kv"]
    assert whole.split["slots"] == 0
    assert whole.split["staging"] == 2 * whole.device.staging_bundles * STRIDE
    layers = whole.device.slot_layers
    room = sum(whole.device.split.values()) - whole.device.split["slots"]
    tight = 350 * MIB  # with which DRAM has slots for a part of each layer
    base = planned(room, memory=tight)
    assert base.device is not None
    assert base.device.slot_layers == 0
    part = planned(room + (layers - 1) * base.slots_per_layer[0] * STRIDE, memory=tight)
    assert part.device is not None
    assert part.device.slot_layers == layers - 1
    # The last layer's slots are in DRAM, and it has what the others left there.
    assert part.slots_per_layer[-1] > base.slots_per_layer[-1]
    assert part.split["slots"] == part.slots_per_layer[-1] * STRIDE
    assert not any(part.lent_blocks[: layers - 1])
    assert part.slots_per_layer[:-1] == part.device.slots[:-1]
    # What is given back is of DRAM.
    fewer = slots_without(part, WIDE, STRIDE, 1 << 40)
    assert tuple(fewer[:-1]) == part.slots_per_layer[:-1]
    assert fewer[-1] < part.slots_per_layer[-1]
    assert sum(part.split.values()) <= tight


def test_keys_and_values_that_are_chosen_or_on_flash_stay() -> None:
    for changes in ({"kv_policy": "window"}, {"kv_memory": 2 * MIB}):
        device = planned(1 << 40, **changes).device
        assert device is not None
        assert (device.kv_layers, device.realised.cg, device.requested.cg) == (0, 0, 0)


def test_a_device_and_its_memory_belong_together() -> None:
    with pytest.raises(UsageError, match="say with --device of which"):
        planned(None, device_memory=MIB)
    with pytest.raises(UsageError, match="say how much of the device"):
        planned(None, device="cuda")
