"""How a memory ceiling is split. Pure arithmetic: from sizes and a ceiling to a plan."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.hardware.machine_profile import Profile
from flashllm.kv_cache.layout import (
    PAGE_THREADS,
    PagePlan,
    kv_bytes,
    plan_pages,
    score_bytes,
    selection_bytes,
    skewing_bytes,
)
from flashllm.options import (
    DEFAULT_ARITHMETIC,
    DEFAULT_KV_DTYPE,
    DEFAULT_KV_SELECTION,
    DEFAULT_KV_VICTIMS,
    DEFAULT_OVERLAP,
    DEFAULT_PROMPT_NEURONS,
    DEFAULT_VERIFY,
    Arithmetic,
    KvDType,
    KvSelection,
    KvVictims,
    ModelOptions,
    Overlap,
    Policy,
    PromptNeurons,
    Select,
    Verify,
)
from flashllm.planning.asked_options import (
    arithmetic_of,
    choose_policy,
    context_of,
    contexts_of,
    encoding_of,
    kv_victims_of,
    overlap_of,
    prompt_neurons_of,
    verify_of,
    within,
)
from flashllm.planning.device_plan import DevicePlan, DeviceRequest, placed_bytes
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.planning.shape_choice import ShapeChoice, reads_layers_whole
from flashllm.planning.sizes import Sizes
from flashllm.planning.slot_allocation import (
    DEFAULT_WINDOW,
    LEAST_BLOCKS,
    PROMPT_RING,
    STEP_RING,
    SlotAllocator,
    least_slots,
)
from flashllm.planning.union_tokens import union_tokens_of, warm_union_tokens_of
from flashllm.planning.ways_to_read import (
    GAP_BYTES,
    THREAD_BYTES,
    WayToRead,
    scattered_share,
    ways_to_read,
)
from flashllm.spec import ModelSpec
from flashllm.units import MIB

SHORT_CONTEXT = 512
"""Tokens of the context that is advised where memory is short."""
ADVICE_MARGIN_BYTES = 8 * MIB
"""What is advised has this much to spare: two processes are never of exactly one size."""

_SEED_TOKENS = 64
_FLASH_SHARES = 8
"""Where the ceiling has no room for keys and values, it may have for 7/8 of them, or 6/8 and so on,
and flash for the rest."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is run under a ceiling. `split` has bytes by component, within the ceiling."""

    ceiling_bytes: int
    smallest_bytes: int
    """The smallest ceiling that these settings accept."""
    split: dict[str, int]
    window: int
    """The paper's window, in tokens; with other policies, the longest that the slots would hold."""
    slots_per_layer: tuple[int, ...]
    """Slots of each layer; where every neuron is needed, the bundles that are pinned."""
    slots_wanted: int
    """Slots that the window needs on the calibration text."""
    io_threads: int
    context: int
    select: Select
    prefill: PrefillShape
    prefill_blocks: int = LEAST_BLOCKS
    """Blocks of a prompt's ring: one is computed while the others are read."""
    lent_blocks: tuple[int, ...] = ()
    """How many of these blocks borrow each layer's slots while a prompt is read; the bundles there
    are evicted."""
    lent_activation_bytes: int = 0
    """What the activations of a whole chunk borrow of the slots' memory; `split` has it there."""
    gap_bytes: int = GAP_BYTES
    """Bundles on flash at most this far apart share one read."""
    overlap: Overlap = DEFAULT_OVERLAP
    policy: Policy = "window"
    """Which bundles stay in slots; one of POLICIES."""
    kv_dtype: KvDType = DEFAULT_KV_DTYPE
    """Encoding of keys and values."""
    kv_pages: PagePlan | None = None
    """How keys and values lie where they have a limit of their own, and some may be on flash."""
    kv_victims: KvVictims = DEFAULT_KV_VICTIMS
    """Which pages leave DRAM first where some do."""
    kv_selection: KvSelection = DEFAULT_KV_SELECTION
    """Which keys and values a token of an answer sees."""
    contexts: int = 1
    """Contexts that may live at once."""
    verify: Verify = DEFAULT_VERIFY
    """Which weights are held against their checksums when they are read; one of VERIFIES."""
    prompt_neurons: PromptNeurons = DEFAULT_PROMPT_NEURONS
    """Which neurons compute a prompt, where a selector may leave out some that are not zero."""
    arithmetic: Arithmetic = DEFAULT_ARITHMETIC
    """How vectors are rounded that weights of groups are multiplied with."""
    union_tokens: int = 0
    """At most so many tokens that go through a layer together read the bundles that any of them
    needs, more of them read the layer. 0 where each needs all."""
    warm_union_tokens: int = 0
    """The same of a prompt where slots are full, of which more tokens miss less."""
    embedding_on_flash: bool = False
    """Whether rows of the embedding are read as tokens need them, and not all are in memory."""
    device: DevicePlan | None = None
    """What lies on a device, where there is one. `split` is of DRAM alone, `slots_per_layer` of
    both."""

    @property
    def needed_tokens(self) -> int:
        """The same of a chunk of a prompt. 0 where all of its neurons are computed."""
        return 0 if self._prompt_is_exact else self.union_tokens

    @property
    def warm_needed_tokens(self) -> int:
        """The same where slots are full."""
        return 0 if self._prompt_is_exact else self.warm_union_tokens

    @property
    def _prompt_is_exact(self) -> bool:
        return self.select == "predicted" and self.prompt_neurons == "exact"

    @property
    def prompt_is_selected(self) -> bool:
        """Whether a prompt is computed through the neurons that the selector selects."""
        return self.needed_tokens > 0

    @property
    def prompt_is_decoded_alike(self) -> bool:
        """Whether a token is computed in a prompt as in an answer, or exactly in both."""
        return (not self.lossy or self.prompt_is_selected) and not self.kv_selection.lossy

    @property
    def seed_tokens(self) -> int:
        """How many of a prompt's last tokens seed the slots with their bundles."""
        if self.reads_layers_whole:
            return 0
        return self.window if self.policy == "window" else max(self.window, _SEED_TOKENS)

    @property
    def reads_layers_whole(self) -> bool:
        """Whether a token of each context together needs so many neurons that layers are read.

        Then what is in slots is as good as anything else, and nothing is gained by replacing it.
        """
        return reads_layers_whole(self.contexts, self.union_tokens, self.select)

    def borrowed_bytes(self, spec: ModelSpec, prompt_tokens: int) -> int:
        """The same of so many tokens of prompts; without any, slots have all of it."""
        if not prompt_tokens:
            return 0
        return max(self.lent_activation_bytes - self.prefill.unused_bytes(spec, prompt_tokens), 0)

    @property
    def own_blocks(self) -> int:
        """Blocks of a prompt's ring that have memory of their own."""
        return self.prefill_blocks - sum(self.lent_blocks)

    @property
    def bundle_noun(self) -> str:
        """What a bundle is, for people."""
        return "expert" if self.select == "router" else "neuron"

    @property
    def lossy(self) -> bool:
        """Whether neurons that are not zero may be left out: where predictors choose."""
        return self.select == "predicted"

    @property
    def resident_bytes(self) -> int:
        """Weights that are always in DRAM."""
        return self.split["embeddings"] + self.split["attention"]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        derived = {"needed_tokens": self.needed_tokens, "lossy": self.lossy}
        return dataclasses.asdict(self) | derived


def make_plan(
    spec: ModelSpec,
    sizes: Sizes,
    options: ModelOptions,
    profile: Profile | None = None,
) -> Plan:
    """Splits the ceiling `options.memory`; None means the smallest ceiling that works.

    `options.select` must be chosen already (`model_facts.choose_selector`). A `profile` sets the
    gap, and the threads unless `options` does, if their memory fits. A window belongs to the
    paper's policy, and selects it if no policy is given; other policies use all slots that fit.
    Raises `MemoryCeilingTooSmall`, which names the smallest ceiling, or `UsageError` for an option
    out of range.

    An embedding that is no head stays on flash where slots have use for its room: a token looks up
    one row of it.
    """
    if not sizes.may_leave_embedding(options):
        return _plan_with(spec, sizes, options, profile)
    if options.memory is not None:
        with contextlib.suppress(MemoryCeilingTooSmall):
            plan = _plan_with(spec, sizes, options, profile)
            if _has_room_left(spec, sizes, plan):
                smallest_bytes = smallest_ceiling(spec, sizes, options, profile)
                return dataclasses.replace(plan, smallest_bytes=smallest_bytes)
    plan = _plan_with(spec, sizes.with_embedding_on_flash(spec), options, profile)
    return dataclasses.replace(plan, embedding_on_flash=True)


def _has_room_left(spec: ModelSpec, sizes: Sizes, plan: Plan) -> bool:
    """Whether slots hold all bundles, or do not take the room that there is."""
    whole_bytes = spec.bundled_layers * spec.bundles_per_layer * sizes.stride
    left_bytes = plan.ceiling_bytes - sum(plan.split.values())
    return plan.split["slots"] >= whole_bytes or left_bytes >= sizes.own_embedding


def _plan_with(
    spec: ModelSpec, sizes: Sizes, options: ModelOptions, profile: Profile | None
) -> Plan:
    """`make_plan` with the embedding where `sizes` have it."""
    select, window = options.select, options.window
    assert select is not None
    context, encoding = context_of(spec, options), encoding_of(options)
    if window is not None:
        window = within("window", window, DEFAULT_WINDOW, 1 << 30)
    policy = choose_policy(options.policy, window)
    split = _fixed_bytes(spec, sizes, options)
    needed_bytes = sum(split.values()) + _least_slot_bytes(spec, sizes, select)
    room = _Room.of(spec, sizes, options, profile, needed_bytes, split)
    ceiling_bytes, read = room.ceiling_bytes, room.read
    split["reserve"] = read.reserve_bytes
    spare_bytes = ceiling_bytes - read.reserve_bytes - needed_bytes
    scattered = scattered_share(sizes.stride, read.threads, profile)
    union_tokens = union_tokens_of(spec, sizes.activity, select, scattered)
    is_whole = reads_layers_whole(contexts_of(options), union_tokens, select)
    ring = STEP_RING if is_whole else PROMPT_RING
    shapes = ShapeChoice(spec, sizes.stride, options)
    shape = shapes.grown(union_tokens, spare_bytes)
    shape = shapes.in_larger_blocks(shape, spare_bytes, ring)
    ring = ring.in_larger_blocks(shape.bundles // shapes.least().bundles)
    split["prefill"] += shapes.bytes(shape) - shapes.bytes(shapes.least())
    activity, bundles = sizes.activity, shape.bundles
    most = None if options.slot_memory is None else options.slot_memory // sizes.stride
    allocator = SlotAllocator(
        spec, sizes.stride, activity, select, policy, window, bundles, most, ring
    )
    allocation = allocator.allocate(ceiling_bytes - sum(split.values()))
    prompt_slots = sum(allocation.slots)
    allocation = allocator.widened(allocation, shapes.lendable_bytes(shape))
    lent_bytes = (sum(allocation.slots) - prompt_slots) * sizes.stride
    split["prefill"] += (allocation.own_blocks - LEAST_BLOCKS) * bundles * sizes.stride - lent_bytes
    split["slots"] = sum(allocation.slots) * sizes.stride
    warm_union_tokens = warm_union_tokens_of(
        spec, activity, union_tokens, allocation.slots, scattered
    )
    plan = Plan(
        ceiling_bytes=ceiling_bytes,
        smallest_bytes=room.smallest_bytes,
        split=split,
        window=allocation.window,
        slots_per_layer=tuple(allocation.slots),
        slots_wanted=sum(allocation.wanted),
        io_threads=read.threads,
        context=context,
        select=select,
        prefill=shape,
        prefill_blocks=allocation.own_blocks + sum(allocation.lent_blocks),
        lent_blocks=tuple(allocation.lent_blocks),
        lent_activation_bytes=lent_bytes,
        gap_bytes=read.gap_bytes,
        overlap=overlap_of(options.overlap, spec),
        policy=policy,
        kv_dtype=encoding,
        kv_pages=_kv_pages(spec, options),
        kv_victims=kv_victims_of(options),
        kv_selection=options.kv_selection,
        contexts=contexts_of(options),
        verify=verify_of(options),
        prompt_neurons=prompt_neurons_of(options),
        arithmetic=arithmetic_of(options),
        union_tokens=union_tokens,
        warm_union_tokens=warm_union_tokens,
    )
    request = _device_request(spec, sizes.stride, options)
    return plan if request is None else _with_device(plan, request, request.place())


@dataclass(frozen=True, slots=True)
class _Room:
    """A ceiling, and the best way to read that it has memory for."""

    ceiling_bytes: int
    smallest_bytes: int
    read: WayToRead

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        sizes: Sizes,
        options: ModelOptions,
        profile: Profile | None,
        needed_bytes: int,
        split: dict[str, int],
    ) -> _Room:
        """The ceiling asked for, or the smallest; `MemoryCeilingTooSmall` tells the `split`.

        `needed_bytes` are those of any plan, without the reserve.
        """
        assert options.select is not None
        reads = ways_to_read(sizes.stride, options.select, options.io_threads, profile)
        totals = [max(needed_bytes + read.reserve_bytes, sizes.before_weights) for read in reads]
        smallest_bytes = min(totals)
        ceiling_bytes = smallest_bytes if options.memory is None else options.memory
        for read, total in zip(reads, totals, strict=True):
            if total <= ceiling_bytes:
                return cls(ceiling_bytes, smallest_bytes, read)
        told = {**split, "reserve": reads[-1].reserve_bytes}
        told["reading the tokenizer"] = max(smallest_bytes - needed_bytes - told["reserve"], 0)
        message = _too_small(ceiling_bytes, smallest_bytes, told)
        if fitting_words := _fitting_options(spec, sizes, options, profile):
            message += f", or {fitting_words}"
        raise MemoryCeilingTooSmall(message, smallest_bytes)


def _with_device(plan: Plan, request: DeviceRequest, placed: DevicePlan) -> Plan:
    """The plan with slots on the device; what they leave in DRAM is shared by the other layers."""
    spec, stride, bundles = request.spec, request.stride, request.spec.bundles_per_layer
    in_dram, lent = list(plan.slots_per_layer), list(plan.lent_blocks)
    device = request.with_slots(placed, in_dram, bundles)
    first = device.slot_layers
    # Slots there cannot lend memory to a prompt's ring: these blocks get some of their own.
    moved = sum(lent[:first]) * plan.prefill.bundles
    lent[:first] = [0] * min(first, len(lent))
    freed = sum(in_dram[:first]) - moved
    unit = plan.prefill.bundles if plan.select == "all" else 1
    if first < spec.bundled_layers and plan.policy != "window":
        more = freed // (spec.bundled_layers - first) // unit * unit
        in_dram[first:] = [min(slots + more, bundles) for slots in in_dram[first:]]
    split = dict(plan.split)
    split["slots"] = sum(in_dram[first:]) * stride
    split["prefill"] += moved * stride
    return dataclasses.replace(
        plan,
        device=device,
        slots_per_layer=(*device.slots[:first], *in_dram[first:]),
        lent_blocks=tuple(lent),
        split=split,
    )


def _device_request(spec: ModelSpec, stride: int, options: ModelOptions) -> DeviceRequest | None:
    """What is asked of a device; None without one."""
    if options.device is None:
        if options.device_memory is not None:
            raise UsageError("--device-memory: say with --device of which device, like cuda")
        return None
    if options.device_memory is None:
        raise UsageError("--device-memory: say how much of the device may be taken, like 8GiB")
    context = context_of(spec, options)
    # What chooses among keys and values, and what brings them from flash, works in DRAM.
    stays = options.kv_memory is not None or options.kv_selection.lossy
    kv = 0 if stays else contexts_of(options) * kv_bytes(spec, context, encoding_of(options))
    assert options.select is not None
    return DeviceRequest(
        spec=spec,
        stride=stride,
        select=options.select,
        name=options.device,
        memory_bytes=options.device_memory,
        kv_bytes=kv,
        context=context,
        chunk_tokens=options.chunk_tokens,
        block_bytes=PrefillShape.of(spec, stride).bundles * stride,
    )


def smallest_ceiling(
    spec: ModelSpec, sizes: Sizes, options: ModelOptions, profile: Profile | None = None
) -> int:
    """The smallest ceiling that `make_plan` accepts with these options, whatever theirs is."""
    select = options.select
    assert select is not None
    if sizes.may_leave_embedding(options):
        sizes = sizes.with_embedding_on_flash(spec)
    reads = ways_to_read(sizes.stride, select, options.io_threads, profile)
    needed_bytes = sum(_fixed_bytes(spec, sizes, options).values())
    needed_bytes += _least_slot_bytes(spec, sizes, select)
    return max(needed_bytes + min(read.reserve_bytes for read in reads), sizes.before_weights)


def smaller_options(spec: ModelSpec, options: ModelOptions) -> Iterator[tuple[str, ModelOptions]]:
    """Options that need less memory, and their flags: the least changed first."""
    kv_dtype: KvDType = "int8"
    narrow = options.having(kv_dtype=kv_dtype)
    if encoding_of(options) != kv_dtype:
        yield f"--kv-dtype {kv_dtype}", narrow
    if context_of(spec, options) > SHORT_CONTEXT:
        yield f"--ctx-size {SHORT_CONTEXT}", options.having(context=SHORT_CONTEXT)
        if encoding_of(options) != kv_dtype:
            words = f"--ctx-size {SHORT_CONTEXT} --kv-dtype {kv_dtype}"
            yield words, narrow.having(context=SHORT_CONTEXT)


def _fitting_options(
    spec: ModelSpec, sizes: Sizes, options: ModelOptions, profile: Profile | None
) -> str:
    """The flags of the first smaller options that fit into the ceiling; "" where none do."""
    assert options.memory is not None
    for words, smaller in (*smaller_options(spec, options), *_on_flash(spec, options)):
        if smallest_ceiling(spec, sizes, smaller, profile) + ADVICE_MARGIN_BYTES <= options.memory:
            return words
    return ""


def _on_flash(spec: ModelSpec, options: ModelOptions) -> Iterator[tuple[str, ModelOptions]]:
    """The same with some keys and values on flash, the fewest first: they slow contexts down."""
    context, encoding, contexts = _kv_asked(spec, options)
    whole = contexts * kv_bytes(spec, context, encoding)
    for shares in range(_FLASH_SHARES - 1, 0, -1):
        part = shares * whole // _FLASH_SHARES // MIB * MIB
        if options.kv_memory is None and part:
            with contextlib.suppress(UsageError):  # staging alone takes more
                plan_pages(spec, context, contexts, encoding, part)
                yield f"--kv-memory {part // MIB}MiB", options.having(kv_memory=part)


def _kv_asked(spec: ModelSpec, options: ModelOptions) -> tuple[int, KvDType, int]:
    """Tokens of a context, the encoding of keys and values, and how many contexts."""
    return context_of(spec, options), encoding_of(options), contexts_of(options)


def _kv_pages(spec: ModelSpec, options: ModelOptions) -> PagePlan | None:
    if options.kv_memory is None:
        return None
    context, encoding, contexts = _kv_asked(spec, options)
    return plan_pages(spec, context, contexts, encoding, options.kv_memory)


def _least_slot_bytes(spec: ModelSpec, sizes: Sizes, select: Select) -> int:
    return spec.bundled_layers * least_slots(spec, select) * sizes.stride


def _fixed_bytes(spec: ModelSpec, sizes: Sizes, options: ModelOptions) -> dict[str, int]:
    """Bytes by component that any ceiling must hold; the prefill with its smallest ring."""
    context, encoding, contexts = _kv_asked(spec, options)
    beside = {"application": sizes.application} if sizes.application else {}
    pages = _kv_pages(spec, options)
    kv = contexts * kv_bytes(spec, context, encoding) if pages is None else pages.memory_bytes
    if pages is not None and pages.flash_bytes:
        kv += PAGE_THREADS * THREAD_BYTES
    request, on_device = _device_request(spec, sizes.stride, options), 0
    shapes = ShapeChoice(spec, sizes.stride, options)
    if request is not None:
        placed = request.place()
        kv -= placed.split["kv"]
        on_device = placed_bytes(spec, placed.matrices)
        beside["staging"] = 2 * placed.staging_bundles * sizes.stride
    return {
        **beside,
        "interpreter": sizes.interpreter,
        "tokenizer": sizes.tokenizer,
        "embeddings": sizes.embeddings,
        "attention": sizes.attention - on_device,
        "predictors": sizes.predictors if options.select == "predicted" else 0,
        "checksums": checksum_bytes(spec, verify_of(options)),
        "kv": kv + _selection_bytes(spec, context, contexts, options) + score_bytes(spec, context),
        "prefill": shapes.bytes(shapes.least()),
    }


def _selection_bytes(spec: ModelSpec, context: int, contexts: int, options: ModelOptions) -> int:
    """What chooses among keys and values."""
    selection = options.kv_selection
    skewing = skewing_bytes(spec) if selection.policy == "infinigen" else 0
    return contexts * selection_bytes(spec, context, selection) + skewing


def checksum_bytes(spec: ModelSpec, verify: Verify) -> int:
    """Bytes of the checksums of all bundles, and of the bits of those that were found right."""
    bundles = spec.bundled_layers * spec.bundles_per_layer
    bits = {"off": 0, "first": 33, "always": 32}[verify]
    return -(-bundles * bits // 8)


def _too_small(ceiling_bytes: int, smallest_bytes: int, split: dict[str, int]) -> str:
    # Rounded up, so that the figure printed is accepted when it is typed in.
    smallest_mib, margin_mib = -(-smallest_bytes // MIB), ADVICE_MARGIN_BYTES // MIB
    parts = ", ".join(f"{name} {bytes_ / MIB:.0f}" for name, bytes_ in split.items() if bytes_)
    return (
        f"a memory ceiling of {ceiling_bytes / MIB:.0f} MiB is too small; the smallest that works"
        f" here is {smallest_mib} MiB ({parts}, the rest for slots). Try"
        f" --memory {smallest_mib + margin_mib}MiB"
    )
