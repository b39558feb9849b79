"""The I/O panel, the neuron map and the view of a token, in a host of their own."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from textual.app import App, ComposeResult
from textual.geometry import Size
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static

from flashllm.options import KvSelection
from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import PrefillCost
from flashllm.telemetry.device_rates import DeviceRates
from flashllm.telemetry.neuron_map import NeuronMap
from flashllm.telemetry.token_report import TokenNumbers, answer_numbers
from flashllm.ui.panels import io_panel
from flashllm.ui.panels.bars import columns, runs, sparkline, stacked
from flashllm.ui.panels.io_lines import (
    FULL_HEIGHT,
    GLYPHS,
    SMALL_HEIGHT,
    Shown,
    full_lines,
    small_lines,
)
from flashllm.ui.panels.io_panel import IoPanel
from flashllm.ui.panels.neuron_map import NeuronMapView, picture
from flashllm.ui.screens.token_details import TokenView
from tests.support.costs import MS, RATES, UNKNOWN_RATES, FakeToken, cost, plan

SIZES = [(80, 24), (120, 40), (40, 12)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for that is only there so that much is seldom drawn."""
    monkeypatch.setattr(io_panel, "UPDATE_SECONDS", 0.01)


class Host(App[None]):
    """As much of an application as the widgets need."""

    CSS = "Static { height: 1fr; }"

    def __init__(self, *widgets: Widget) -> None:
        super().__init__()
        self._widgets = widgets

    def compose(self) -> ComposeResult:
        yield Static("the transcript")
        yield from self._widgets


def shown(app: App[None], widget: Widget) -> list[str]:
    """The lines of a widget as they are on the screen."""
    region = widget.region
    lines = app.screen._compositor.render_strips()
    return [
        "".join(segment.text for segment in line)[region.x : region.right].rstrip()
        for line in lines[region.y : region.bottom]
    ]


def answer(count: int = 3, rates: DeviceRates = RATES) -> list[TokenNumbers]:
    return answer_numbers([FakeToken("word", cost())] * count, rates, plan(), {0: 412})


async def shown_panel(pilot: Pilot[None], panel: IoPanel) -> list[str]:
    await pilot.pause(io_panel.UPDATE_SECONDS + 0.05)
    await pilot.pause()
    return shown(pilot.app, panel)


def feed(panel: IoPanel, rates: DeviceRates = RATES, count: int = 3) -> None:
    panel.show_plan(plan(), rates)
    panel.show_prefill(PrefillCost(412, 2_100 * MS, 812_000_000, 300))
    for numbers in answer(count, rates):
        panel.show_token(numbers)


async def test_the_panel_says_what_a_token_cost_and_what_it_could() -> None:
    panel = IoPanel()
    async with Host(panel).run_test(size=(80, 24)) as pilot:
        feed(panel)
        lines = await shown_panel(pilot, panel)
    assert len(lines) == FULL_HEIGHT
    text = "\n".join(lines)
    # Two decoded tokens of 40 ms; the prompt's is not among them. Half is waiting, so two rows
    # of five are compute (17 of 40 ms) and choosing (3), the rest flash.
    assert [line.lstrip()[:2] for line in lines[:5]] == ["██", "██", "██", "▒▒", "▒▒"]
    assert "token   3: 40 ms, bars to 40 ms" in text
    assert "MB/tok  ██ 30 MB" in text
    assert "in DRAM ▇▇ 90.0 %" in text
    assert "flash   2.5 GB/s, 83 % of profile" in text
    assert "bound   25 % (10 ms by flash)" in text
    assert "prompt  412 tok, 300 kept, 2.1 s, 812 MB" in text
    assert "slots 200 MiB, interpreter 100, reserve 40" in text
    assert "RSS     310 of 512 MiB   rates: the profile of a device" in text


async def test_without_a_profile_the_panel_says_how_to_get_one() -> None:
    panel = IoPanel()
    async with Host(panel).run_test(size=(80, 24)) as pilot:
        feed(panel, UNKNOWN_RATES)
        text = "\n".join(await shown_panel(pilot, panel))
    assert "flash   2.5 GB/s of unknown" in text
    assert "bound   unknown" in text
    assert "rates: unknown: run `flashllm bench io --quick`" in text


def full(tokens: list[TokenNumbers], width: int = 78, **changes: Any) -> str:
    shown = Shown(dataclasses.replace(plan(), **changes), RATES, None, tokens)
    return "\n".join(line.plain for line in full_lines(shown, width))


def test_a_token_that_reads_gigabytes_is_said_in_megabytes() -> None:
    (token,) = answer_numbers([FakeToken("", cost(bytes_read=8_642_000_000))], RATES, plan(), {})
    assert "MB/tok  █ 8,642 MB" in full([token])


def test_what_is_seen_of_keys_and_values_is_said_to_be_lossy() -> None:
    costs = [cost(kv_tokens=100, kv_seen=4, kv_recall=0.9), cost(kv_tokens=100, kv_seen=8)]
    tokens = answer_numbers([FakeToken("", one) for one in costs], RATES, plan(), {})
    lossy = KvSelection("infinigen")
    assert "KV 6 % (lossy), recall 0.90" in full(tokens, 79, kv_selection=lossy)
    assert "KV" not in full(tokens, 79)
    shown = Shown(dataclasses.replace(plan(), kv_selection=lossy), RATES, None, tokens)
    assert "KV 6 % (lossy)" in "\n".join(line.plain for line in small_lines(shown, 79))


def test_the_numbers_are_those_of_the_tokens_whose_bars_are_there() -> None:
    costs = [cost(wall_ns=400 * MS), *[cost()] * 34]
    tokens = answer_numbers([FakeToken("", one) for one in costs], RATES, plan(), {})
    assert "bars to 40 ms" in full(tokens, 78)  # of 34
    assert "bars to 400 ms" in full(tokens, 79)


def test_a_ceiling_of_which_little_is_taken_has_a_bar_too() -> None:
    memory = full([], 160, ceiling_bytes=16 << 30).splitlines()[-2]
    assert memory == (
        "memory  ▒▒▒▒▒▒▓▓▓█░▓  slots 200 MiB, interpreter 100, reserve 40, prefill 20, "
        "attention 16, kv 12, embeddings 8, predictors 4, free 15.6 GiB"
    )
    assert "free" not in full([], 160, ceiling_bytes=400 << 20)


@pytest.mark.parametrize("width", range(70, 90))
def test_names_and_numbers_never_run_into_each_other(width: int) -> None:
    screen = Size(width + 2, 24)
    height = IoPanel().get_content_height(screen, screen, width)
    assert height == (FULL_HEIGHT if width >= 76 else SMALL_HEIGHT)
    if height == FULL_HEIGHT:
        assert re.search("rest +prompt", full(answer(60), width))
    assert IoPanel().get_content_height(screen, Size(width, 23), width) == SMALL_HEIGHT


async def test_a_device_whose_name_would_act_on_the_terminal_is_harmless() -> None:
    panel = IoPanel()
    async with Host(panel).run_test(size=(80, 24)) as pilot:
        feed(panel, DeviceRates(origin="disk\x1b]0;owned\x07 [bold]x[/]"))
        text = "\n".join(await shown_panel(pilot, panel))
    assert "\x1b" not in text
    assert "rates: disk [bold]x[/]" in text


async def test_a_small_screen_has_four_lines() -> None:
    panel = IoPanel()
    async with Host(panel).run_test(size=(40, 12)) as pilot:
        feed(panel)
        lines = await shown_panel(pilot, panel)
    assert len(lines) == SMALL_HEIGHT
    # 30 cells for 40 ms: 17 of them computed, 3 chosen, 20 waited for.
    assert lines[0].split() == ["40", "ms", "▒" * 13 + "▓" * 2 + "█" * 15]
    assert lines[1].split() == ["30", "MB", "██", "in", "DRAM", "90", "%", "▇▇"]
    assert "flash 83 % of profile, bound 25 %" in lines[2]
    assert "RSS 310 of 512 MiB" in lines[3]


@pytest.mark.parametrize("size", [*SIZES, (20, 6), (200, 60)], ids=str)
async def test_a_panel_without_tokens_shows_that_at_any_size(size: tuple[int, int]) -> None:
    panel = IoPanel()
    async with Host(panel).run_test(size=size) as pilot:
        assert "n" in "".join(await shown_panel(pilot, panel))
        panel.show_plan(plan(), RATES)
        await shown_panel(pilot, panel)
        feed(panel, count=100)
        lines = await shown_panel(pilot, panel)
        assert any(glyph in "".join(lines) for glyph in GLYPHS)
        await pilot.resize_terminal(60, 20)
        assert await shown_panel(pilot, panel)


async def test_hundreds_of_tokens_a_second_are_few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    original = IoPanel.render

    def counted(panel: IoPanel) -> Any:
        rendered.append(1)
        return original(panel)

    monkeypatch.setattr(IoPanel, "render", counted)
    monkeypatch.setattr(io_panel, "UPDATE_SECONDS", 3600.0)
    panel = IoPanel()
    async with Host(panel).run_test(size=(80, 24)) as pilot:
        feed(panel)
        await pilot.pause()
        before = len(rendered)
        for numbers in answer(300):
            panel.show_token(numbers)
            await asyncio.sleep(0)
        await pilot.pause()
        assert len(rendered) == before


async def test_a_hidden_panel_computes_nothing_and_is_right_when_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    panel = IoPanel()
    panel.display = False
    async with Host(panel).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        monkeypatch.setattr(panel, "render", lambda: pytest.fail("it is hidden"))
        feed(panel)
        assert not panel._timers
        await pilot.pause(io_panel.UPDATE_SECONDS + 0.05)
        monkeypatch.undo()
        panel.display = True
        await pilot.pause()
        assert "token   3: 40 ms" in "\n".join(await shown_panel(pilot, panel))


async def test_another_model_forgets_the_tokens_of_the_one_before() -> None:
    panel = IoPanel()
    async with Host(panel).run_test(size=(80, 24)) as pilot:
        feed(panel)
        await shown_panel(pilot, panel)
        panel.show_plan(plan(), UNKNOWN_RATES)
        text = "\n".join(await shown_panel(pilot, panel))
    assert "token   none yet" in text
    assert "prompt  none yet" in text


# The neuron map


def marks(layers: int, neurons: int, *kinds: set[int]) -> NeuronMap:
    def mask(ids: set[int]) -> np.ndarray:
        found = np.zeros(neurons, dtype=np.bool_)
        found[list(ids)] = True
        return found

    return NeuronMap.of([tuple(map(mask, kinds))] * layers)  # type: ignore[list-item]


def test_states_differ_without_colours() -> None:
    found = marks(1, 8, {1, 2, 3}, {2}, {3})
    # Two blocks a character: nothing and one dot, three dots and four.
    assert [line.plain for line in picture(found, 20, 5)] == ["0 ⢀⣾⠀⠀"]


def test_a_map_larger_than_its_place_is_put_together() -> None:
    found = marks(80, 1000, set(range(500)), set(), {999})
    lines = [line.plain for line in picture(found, 43, 8)]
    assert [line.split(" ")[0] for line in lines] == [str(10 * row) for row in range(8)]
    assert all(len(line) == 43 for line in lines)
    assert all(line.split()[1] == "⣀" * 20 + "⠀" * 19 + "⢸" for line in lines)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_map_fits_the_screen_and_says_what_it_means(size: tuple[int, int]) -> None:
    view = NeuronMapView()
    async with Host(view).run_test(size=size) as pilot:
        assert "no map of neurons yet" in "".join(shown(pilot.app, view))
        view.show(marks(32, 4096, set(range(2048)), {0, 1}, {4095}))
        await pilot.pause()
        lines = shown(pilot.app, view)
        assert len(lines) == min(32, size[1] // 3) + 1
        assert "⣀ DRAM 50 % ⣶ used <0.1 % ⣿ read <0.1" in lines[-1]
        assert lines[0].strip().startswith("0 ")
        view.show(None)
        await pilot.pause()
        assert "no map of neurons yet" in "".join(shown(pilot.app, view))


# The view of a token


def token_text(app: App[None]) -> str:
    return str(app.screen.query_one(Static).content)


def three(**changes: Any) -> list[TokenNumbers]:
    tokens = [
        FakeToken("first", cost(wall_ns=5_000 * MS)),
        FakeToken("a\x1b[31m [b]b[/b]\n", cost(**changes)),
        FakeToken(
            "", cost(wall_ns=60 * MS, bytes_read=0, reads=0, io_busy_ns=0, size_histogram=())
        ),
    ]
    return answer_numbers(tokens, RATES, plan(), {0: 412})


async def test_a_tokens_numbers_stand_beside_the_median() -> None:
    async with Host().run_test(size=(80, 24)) as pilot:
        view = TokenView(three(), 1)
        await pilot.app.push_screen(view)
        await pilot.pause()
        lines = [" ".join(line.split()) for line in token_text(pilot.app).splitlines()]
        assert lines[0] == "a·[b]b[/b]⏎"
        assert "time 40 ms 50 ms" in lines
        assert "read from flash 30 MB 15 MB" in lines
        assert "sizes, from 300×64K" in lines
        assert "at once 6.0 3.0" in lines
        assert "neurons in DRAM 90.0 % 90.0 %" in lines
        assert "of them 900 hits, 100 misses" in lines
        assert "flash gave 2.5 GB/s, 83 % of profile 2.5 GB/s" in lines
        assert f"waiting for flash {'█' * 8} 20 ms 20 ms" in lines


async def test_left_and_right_go_to_neighbours_and_stop_at_the_ends() -> None:
    async with Host().run_test(size=(80, 24)) as pilot:
        view = TokenView(three(), 1)
        await pilot.app.push_screen(view)
        await pilot.press("right")
        assert "no text of its own" in token_text(pilot.app)
        assert "nothing was read" in token_text(pilot.app)
        await pilot.press("right", "right")
        assert view.place == 2
        await pilot.press("left", "h")
        assert "with its prompt" in token_text(pilot.app)
        assert "unknown" in token_text(pilot.app)  # a prompt has no bound
        await pilot.press("left", "l", "end")
        assert view.place == 2
        await pilot.press("home")
        assert view.place == 0
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, TokenView)


@pytest.mark.parametrize(
    ("text", "shown_as"),
    [
        ("\u2028x", "<2028>x"),
        ("\u202eabc", "abc"),
        ("\x9b31mred", "red"),
        ("\x1b]52;c;eA==\x07", "(no text of its own"),
        ("\t\n ", "⇥⏎·"),
        ("z" * 100, "z" * 39 + "…"),
        ("汉字", "汉字"),
    ],
)
async def test_a_tokens_text_is_on_one_line_and_harmless(text: str, shown_as: str) -> None:
    numbers = answer_numbers([FakeToken(text, cost())], RATES, plan(), {0: 412})
    async with Host().run_test(size=(80, 24)) as pilot:
        await pilot.app.push_screen(TokenView(numbers))
        await pilot.pause()
        first = token_text(pilot.app).split("\n")[0]
        assert first.startswith(shown_as)
        assert first.isprintable()


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_view_of_a_token_fits(size: tuple[int, int]) -> None:
    async with Host().run_test(size=size) as pilot:
        await pilot.app.push_screen(TokenView(three()))
        await pilot.pause()
        text = token_text(pilot.app)
        assert ("█" in text) == (size[0] >= 70)
        frame = pilot.app.screen.query("VerticalScroll").first()
        assert frame.region.width <= size[0]
        assert frame.region.height <= size[1]


# Bars


def test_a_sparkline_by_hand() -> None:
    assert sparkline([0, 1, 2, 7], 10) == "▁▂▃█"
    assert sparkline([0, 1, 2, 7], 2) == "▃█"
    assert sparkline([0.5, 1.0], 5, high=1.0) == "▅█"
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([], 5) == sparkline([1], 0) == ""


def test_stacked_cells_add_up() -> None:
    assert stacked([1, 1, 1], 3, 10) == [3, 4, 3]
    assert stacked([1, 1], 4, 10) == [2, 3]
    assert stacked([9, 9], 3, 10) == [10, 0]  # more than the whole is cut
    assert stacked([1, 2], 0, 10) == [0, 0]


def test_columns_stand_on_the_ground() -> None:
    assert columns([[2, 2], [1, 0]], 4) == [[1, -1], [1, -1], [0, -1], [0, 0]]
    assert columns([], 2) == [[], []]
    assert runs([1, 1, -1, 2]) == [(1, 2), (-1, 1), (2, 1)]


def test_every_part_is_in_a_group_that_the_panel_shows() -> None:
    from flashllm.telemetry.formatting import PART_GROUPS, PART_WORDS

    grouped = [part for parts in PART_GROUPS.values() for part in parts]
    assert sorted(grouped) == sorted(PARTS)
    assert set(PART_WORDS) == set(PARTS)
    assert len(GLYPHS) >= len(PART_GROUPS)


def test_the_widgets_are_imported_without_the_engines_arrays() -> None:
    """The first frame of the chat does not wait for numpy, nor for torch."""
    code = (
        "import sys, flashllm.ui.panels.io_panel, flashllm.ui.panels.neuron_map;"
        "import flashllm.ui.screens.token_details;"
        "print(sorted({'numpy', 'torch', 'flashllm.telemetry.costs'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
