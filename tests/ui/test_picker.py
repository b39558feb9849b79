"""The model picker and the convert screen, in an application that has nothing else."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Button, DataTable, Input, ProgressBar, Select, Static

from flashllm.errors import UnsupportedModel
from flashllm.library.conversion_job import Conversions, JobState
from flashllm.library.conversion_options import TRAIN, ConvertOptions
from flashllm.library.conversion_preview import Preview
from flashllm.library.models import Checkpoint, FoundModel, ModelChoice
from flashllm.ui.screens.convert import ConvertScreen
from flashllm.ui.screens.convert_form import AGAIN, ConvertForm
from flashllm.ui.screens.models import ModelPicker, details
from tests.support.fake_library import (
    BIG,
    BROKEN,
    CHECKPOINT,
    DEMO,
    HUGE,
    MODELS,
    FakeLibrary,
    scripted_job,
)
from tests.support.screens import WAIT_SECONDS, shown, until

SIZES = [(120, 40), (80, 24), (40, 12)]
NOTHING = object()


class Host(App[None]):
    """Shows one screen and keeps what it gives."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self.first = screen
        self.given: Any = NOTHING

    def on_mount(self) -> None:
        def take(result: object) -> None:
            self.given = result

        self.push_screen(self.first, take)


def rows(screen: Screen[Any]) -> list[list[str]]:
    table = screen.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def text_of(screen: Screen[Any], name: str) -> str:
    return str(screen.query_one(f"#{name}", Static).content)


async def filled(pilot: Pilot[None], count: int = len(MODELS)) -> ModelPicker:
    picker = pilot.app.screen
    assert isinstance(picker, ModelPicker)
    await until(pilot, lambda: "looking" not in text_of(picker, "picker-title"))
    assert len(rows(picker)) == count
    return picker


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_shown(size: tuple[int, int]) -> None:
    app = Host(ModelPicker(FakeLibrary(), DEMO.choice))
    async with app.run_test(size=size) as pilot:
        picker = await filled(pilot)
        shown = rows(picker)
        if size[0] == 40:
            assert shown[1] == ["  org/big", "6144 MiB", "~2.3"]
        else:
            assert shown[0] == ["● demo", "13.8 MiB", "f16", "309 MiB", "410", ""]
            assert shown[1] == ["  org/big", "13.0 GiB", "int8", "6144 MiB", "~2.3", ""]
            assert shown[3][-1] == BROKEN.problem
        assert shown[2][-2 if size[0] > 40 else -1] == "-"  # the speed of the huge one is unknown
        assert shown[3][0] == "  ! broken [b]name[/b]"[: 22 if size[0] == 40 else 36]
        assert text_of(picker, "picker-title") == "4 of 4 models"
        table = picker.query_one(DataTable)
        assert table.size.height >= 4  # a head and three rows at least, however small
        assert picker.query_one("#details").region.bottom <= size[1]


async def test_a_name_that_is_begun_is_completed() -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        picker = await filled(pilot)
        await pilot.press("slash", *"oRG/b")
        field = picker.query_one(Input)
        await until(pilot, lambda: field._suggestion == "org/big")
        await pilot.press("right", "enter")
        assert (field.value, app.given) == ("org/big", BIG.choice)


async def test_enter_opens_the_chosen_one() -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        picker = await filled(pilot)
        await pilot.press("down")
        assert text_of(picker, "details").splitlines() == [
            "2.3 tokens/s expected in 8192 MiB, from measured rates of disk and machine; assumed: "
            "10 % of the neurons used a token",
            "Needs 6144 MiB of memory at least, 170 MiB of it for the chat itself",
            "32 layers of 16384 neurons, relu, in int8",
            "/models/big.flash",
        ]
        await pilot.press("enter")
        await until(pilot, lambda: app.given is not NOTHING)
    assert app.given == ModelChoice(BIG.path)
    assert app.given.name == "org/big"


async def test_the_demo_has_no_path() -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        await filled(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.given is not NOTHING)
    assert app.given == ModelChoice(None, "demo")


async def test_a_click_on_the_chosen_row_opens_it() -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        await filled(pilot)
        await pilot.click(DataTable, offset=(5, 2))
        assert app.given is NOTHING
        await pilot.click(DataTable, offset=(5, 2))
        await until(pilot, lambda: app.given is not NOTHING)
    assert app.given == BIG.choice


async def test_one_without_a_tokenizer_is_not_opened() -> None:
    ids = replace(BIG, path=Path("/models/ids"), name="ids", has_tokenizer=False)
    app = Host(ModelPicker(FakeLibrary((DEMO, ids, HUGE))))
    async with app.run_test(size=(120, 40)) as pilot:
        picker = await filled(pilot, 3)
        assert [row[-1] for row in rows(picker)] == ["", "no tokenizer", "too large"]
        assert rows(picker)[1][0] == "  ! ids"
        await pilot.press("down", "enter")
        assert app.given is NOTHING
        words = "Not for a chat: no tokenizer; `flashllm run MODEL --ids 1,2,3` runs it"
        assert text_of(picker, "details").splitlines()[0] == words
        await pilot.press("down", "enter")  # what is too large may fit by now
        await until(pilot, lambda: app.given == HUGE.choice)


async def test_a_broken_one_is_not_opened() -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        picker = await filled(pilot)
        await pilot.press("down", "down", "down", "enter")
        assert app.given is NOTHING
        assert text_of(picker, "details").startswith(f"Cannot be opened: {BROKEN.problem}")


@pytest.mark.parametrize("begin", [["slash"], []])
async def test_typing_filters(begin: list[str]) -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        picker = await filled(pilot)
        await pilot.press(*begin, *"org 32")
        assert [row[0] for row in rows(picker)] == ["  org/big"]
        assert text_of(picker, "picker-title") == "1 of 4 models"
        await pilot.press("escape")  # takes the filter away
        assert len(rows(picker)) == 4
        assert app.given is NOTHING
        await pilot.press("slash", *"org", "down", "up", "down", "enter")
        await until(pilot, lambda: app.given is not NOTHING)
    assert app.given == HUGE.choice


async def test_nothing_fits() -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        picker = await filled(pilot)
        await pilot.press(*"xyz", "enter")
        assert rows(picker) == []
        assert "c converts" in text_of(picker, "details")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: app.given is not NOTHING)
    assert app.given is None


async def test_models_are_shown_as_they_are_found_and_the_chosen_one_stays() -> None:
    library = FakeLibrary()
    library.gate.clear()
    app = Host(ModelPicker(library, BIG.choice))
    async with app.run_test() as pilot:
        picker = app.screen
        await until(pilot, lambda: len(rows(picker)) == 1)
        assert "looking for more" in text_of(picker, "picker-title")
        library.gate.set()
        picker = await filled(pilot)
        assert text_of(picker, "details").endswith(str(BIG.path))
        library.models = (DEMO, replace(BIG, tokens_per_second=None), HUGE)
        await pilot.press("f5")
        await until(pilot, lambda: library.searches == 2)
        picker = await filled(pilot, 3)
        assert rows(picker)[1][4] == "-"
        assert text_of(picker, "details").endswith(str(BIG.path))


async def test_a_model_that_comes_again_is_renewed() -> None:
    early = replace(BIG, smallest_ceiling_bytes=None, tokens_per_second=None, ceiling_bytes=None)
    app = Host(ModelPicker(FakeLibrary((early, BIG))))
    async with app.run_test() as pilot:
        picker = await filled(pilot, 1)
        assert rows(picker)[0][3:5] == ["6144 MiB", "~2.3"]


async def test_a_search_that_breaks_off() -> None:
    library = FakeLibrary(error=ValueError("odd \x1b[2Jthing"))
    app = Host(ModelPicker(library))
    async with app.run_test() as pilot:
        picker = await filled(pilot)
        assert text_of(picker, "picker-title") == "the search broke off: odd thing"


async def test_leaving_while_it_looks() -> None:
    library = FakeLibrary()
    library.gate.clear()
    app = Host(ModelPicker(library))
    async with app.run_test() as pilot:
        await until(pilot, lambda: library.searches == 1)
        await pilot.press("escape")
        await until(pilot, lambda: app.given is not NOTHING)
        library.gate.set()
    assert app.given is None


@pytest.mark.parametrize(
    ("model", "first"),
    [
        (HUGE, "Needs more than the 8192 MiB it would get"),
        (
            replace(BIG, tokens_per_second=None),
            "Speed unknown: `flashllm bench io` measures disk and machine, --quick in seconds",
        ),
        (
            replace(BIG, smallest_ceiling_bytes=None, tokens_per_second=None),
            "Memory and speed are not known yet",
        ),
        (
            DEMO,
            "410 tokens/s expected in 8192 MiB, from measured rates of disk and machine",
        ),
        (
            replace(DEMO, quick=True),
            "410 tokens/s expected in 8192 MiB, from a quick profile of disk and machine"
            " (`flashllm bench io` measures them well)",
        ),
        (BROKEN, f"Cannot be opened: {BROKEN.problem}"),
    ],
)
def test_details(model: FoundModel, first: str) -> None:
    assert details(model)[0] == first


def test_what_the_chat_takes_is_told_apart() -> None:
    alone = replace(BIG, application_bytes=0)
    assert details(alone)[1] == "Needs 6144 MiB of memory at least"


async def test_what_is_found_together_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    show = ModelPicker._show

    def count(picker: ModelPicker) -> None:
        drawn.append(len(picker._models))
        show(picker)

    monkeypatch.setattr(ModelPicker, "_show", count)
    app = Host(ModelPicker(FakeLibrary(())))
    async with app.run_test() as pilot:
        picker = await filled(pilot, 0)
        drawn.clear()
        for number in range(300):
            picker._take(ModelPicker.Found(replace(BIG, path=Path(f"/models/{number}"))))
        await until(pilot, lambda: len(rows(picker)) == 300)
        assert drawn == [300]


async def test_a_search_that_was_given_up_ends_nothing() -> None:
    library = FakeLibrary()
    library.gate.clear()
    app = Host(ModelPicker(library))
    async with app.run_test() as pilot:
        picker = app.screen
        await until(pilot, lambda: library.searches == 1 and len(rows(picker)) == 1)
        first, library.gate = library.gate, threading.Event()
        library.models = (DEMO,)
        await pilot.press("f5")
        await until(pilot, lambda: library.searches == 2)
        first.set()
        await pilot.pause(0.1)
        assert "looking for more" in text_of(picker, "picker-title")
        library.gate.set()
        await filled(pilot, 1)


async def test_what_is_pasted_does_not_act_on_the_terminal() -> None:
    app = Host(ModelPicker(FakeLibrary()))
    async with app.run_test() as pilot:
        picker = await filled(pilot)
        field = picker.query_one(Input)
        field.focus()
        field.post_message(events.Paste("o\x1b]52;c;eA==\x07rg\x1b[2J\u202e \tb"))
        await until(pilot, lambda: field.value == "org  b")
        assert [row[0] for row in rows(picker)] == ["  org/big"]


# Converting


def form_of(app: Host) -> ConvertForm:
    return app.screen.query_one(ConvertForm)


async def write(pilot: Pilot[None], name: str, text: str) -> None:
    pilot.app.screen.query_one(f"#{name}", Input).value = text
    await pilot.pause()


async def previewed(pilot: Pilot[None], text: str = "on disk about 13.0 GiB") -> None:
    await until(pilot, lambda: text in text_of(pilot.app.screen, "preview"))


def buttons(app: Host) -> list[str]:
    return [str(button.label) for button in app.screen.query(Button) if button.display]


def convert_host(
    script: str = "phase(5); time.sleep(60)", library: FakeLibrary | None = None
) -> tuple[Host, Conversions, FakeLibrary]:
    conversions, library = Conversions(scripted_job(script)), library or FakeLibrary()
    return Host(ConvertScreen(conversions, library)), conversions, library


@pytest.mark.parametrize("size", SIZES)
async def test_from_the_form_to_an_open_model(tmp_path: Path, size: tuple[int, int]) -> None:
    app, conversions, library = convert_host("phase(0); phase(5); make(); phase(10)")
    async with app.run_test(size=size) as pilot:
        await write(pilot, "source", str(tmp_path / "source"))
        await write(pilot, "destination", str(tmp_path / "made"))
        await previewed(pilot)
        assert buttons(app) == ["Convert", "Close"]
        await pilot.press("ctrl+s")
        await until(pilot, lambda: not conversions.is_running)
        await until(pilot, lambda: buttons(app) == ["Open", "Another", "Close"])
        assert "Complete." in text_of(app.screen, "job-text")
        assert library.prepared == [tmp_path / "made"]
        assert text_of(app.screen, "convert-title") == "converted made"
        assert app.screen.query_one("#buttons").region.bottom <= size[1]
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.given is not NOTHING)
    assert app.given == tmp_path / "made"


async def test_what_is_made_without_a_tokenizer_is_not_offered_to_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashllm.ui.screens.convert.can_chat", lambda _made: False)
    app, conversions, _ = convert_host("phase(5); make(); phase(10)")
    async with app.run_test() as pilot:
        await write(pilot, "source", str(tmp_path / "source"))
        await write(pilot, "destination", str(tmp_path / "made"))
        await previewed(pilot)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: not conversions.is_running)
        await until(pilot, lambda: buttons(app) == ["Another", "Close"])
        said = text_of(app.screen, "job-text")
        assert "It came without a tokenizer, which a chat needs" in said
        assert f"flashllm run {tmp_path}/made --ids 1,2,3" in said.replace("\n", "")
        await pilot.press("ctrl+o")
        assert app.given is NOTHING


async def test_progress_then_stop_then_another(tmp_path: Path) -> None:
    app, conversions, _ = convert_host('say(event="warning", text="odd"); phase(5); time.sleep(60)')
    async with app.run_test() as pilot:
        await write(pilot, "source", str(tmp_path / "source"))
        await write(pilot, "destination", str(tmp_path / "made"))
        await previewed(pilot)
        await pilot.click("#buttons Button")
        await until(pilot, lambda: "bundles: 50 %, 2 s left" in text_of(app.screen, "job-text"))
        assert "5 B of 10 B" in text_of(app.screen, "job-text")
        assert "warning: odd" in text_of(app.screen, "job-more")
        assert text_of(app.screen, "convert-title").startswith("converting made: bundles: 50 %")
        assert buttons(app) == ["Stop", "Close"]
        await pilot.press("ctrl+s", "ctrl+o")  # not now
        await pilot.press("ctrl+x")
        await until(pilot, lambda: buttons(app) == ["Another", "Close"])
        assert "stopped; nothing was made" in text_of(app.screen, "job-text")
        await pilot.press("ctrl+b")
        await previewed(pilot)
        assert buttons(app) == ["Convert", "Close"]
    assert conversions.job is not None
    assert conversions.job.status.state is JobState.STOPPED


async def test_what_is_made_how_far_all_of_it_is_and_what_was_made(tmp_path: Path) -> None:
    app, conversions, _ = convert_host("""
        say(event="plan", lines=["writes 3.6 GiB to made", "takes about 40 s"])
        say(event="phase", phase="bundles", done_bytes=5, total_bytes=10, seconds=2.0,
            whole_share=0.25, whole_seconds_left=90.0)
        while not destination.with_name("go").exists(): time.sleep(0.01)
        make()
        say(event="summary", lines=["3.6 GiB written", "next: flashllm chat made"])
    """)
    async with app.run_test(size=(100, 30)) as pilot:
        await write(pilot, "source", str(tmp_path / "source"))
        await write(pilot, "destination", str(tmp_path / "made"))
        await previewed(pilot)
        await pilot.press("ctrl+s")
        shown = "bundles: 50 %; all: 25 %, 2 min left"
        await until(pilot, lambda: shown in text_of(app.screen, "job-text"))
        assert text_of(app.screen, "job-more").startswith(
            "writes 3.6 GiB to made\ntakes about 40 s"
        )
        assert app.screen.query_one(ProgressBar).percentage == pytest.approx(0.25)
        (tmp_path / "go").touch()
        await until(pilot, lambda: not conversions.is_running)
        await until(pilot, lambda: "Complete." in text_of(app.screen, "job-text"))
        assert text_of(app.screen, "job-text").endswith(
            "Complete.\n3.6 GiB written\nnext: flashllm chat made"
        )


async def test_leaving_lets_it_go_on_and_coming_back_shows_it(tmp_path: Path) -> None:
    conversions = Conversions(scripted_job("phase(5); time.sleep(60)"))
    library = FakeLibrary()
    conversions.start(tmp_path / "source", tmp_path / "made")
    app = Host(ConvertScreen(conversions, library))
    async with app.run_test() as pilot:
        assert buttons(app) == ["Stop", "Close"]
        await until(pilot, lambda: "50 %" in text_of(app.screen, "job-text"))
        await pilot.press("escape")
        await until(pilot, lambda: app.given is not NOTHING)
        assert app.given is None
        assert conversions.is_running
    conversions.close()
    assert not conversions.is_running


async def test_what_cannot_be_converted_is_said_before() -> None:
    refusal = UnsupportedModel("x/config.json: model_type is 'odd\x1b]0;x\x07'; supported: others")
    app, conversions, library = convert_host(library=FakeLibrary(refusal=refusal))
    async with app.run_test() as pilot:
        await write(pilot, "source", "/some/where")
        await previewed(pilot, "model_type is 'odd'; supported: others")
        assert form_of(app).query_one("#preview").has_class("-error")
        asked = len(library.asked)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: len(library.asked) > asked)  # looked at once more
        await pilot.pause()
        assert conversions.job is None


async def test_what_is_not_looked_at_yet_begins_when_it_is(tmp_path: Path) -> None:
    app, conversions, library = convert_host("phase(1); make()")
    async with app.run_test() as pilot:
        form_of(app).query_one("#source", Input).value = str(tmp_path / "source")
        form_of(app).query_one("#destination", Input).value = str(tmp_path / "made")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "Open" in buttons(app))
    assert library.asked[-1][1] == tmp_path / "made"
    assert conversions.job is not None


async def test_an_unexpected_error_of_looking_is_said(tmp_path: Path) -> None:
    class OddLibrary(FakeLibrary):
        def preview(self, source: Path, destination: Path, options: ConvertOptions) -> Preview:
            raise ValueError("odd \x1b[2Jthing")

    app, conversions, _ = convert_host(library=OddLibrary())
    async with app.run_test() as pilot:
        await write(pilot, "source", "/some/where")
        await pilot.press("ctrl+s")
        await previewed(pilot, "unexpected: ValueError: odd thing")
        assert conversions.job is None


async def test_how_it_ended_is_shown_to_who_was_away(tmp_path: Path) -> None:
    conversions = Conversions(scripted_job("print('flashllm: the disk is full', file=sys.stderr)"))
    conversions.start(tmp_path / "source", tmp_path / "made").wait(WAIT_SECONDS)
    app = Host(ConvertScreen(conversions, FakeLibrary(), "/another"))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "the disk is full" in text_of(app.screen, "job-text"))
        await pilot.press("ctrl+b")
        await previewed(pilot)
        assert form_of(app).query_one("#source", Input).value == "/another"
    seen = Host(ConvertScreen(conversions, FakeLibrary()))
    async with seen.run_test():
        assert form_of(seen).display


async def test_an_unfinished_form_starts_nothing() -> None:
    app, conversions, library = convert_host()
    async with app.run_test() as pilot:
        await pilot.press("ctrl+s")
        await pilot.pause(0.3)
        assert conversions.job is None
        assert library.asked == []


async def test_two_at_once_are_refused(tmp_path: Path) -> None:
    app, conversions, _ = convert_host()
    async with app.run_test() as pilot:
        await write(pilot, "source", str(tmp_path / "source"))
        await previewed(pilot)
        conversions.start(tmp_path / "another", tmp_path / "made")
        await pilot.press("ctrl+s")
        await previewed(pilot, "another is being converted")
    conversions.close()


async def test_options_become_a_wish() -> None:
    app, _, library = convert_host()
    async with app.run_test() as pilot:
        await write(pilot, "source", "~/from")
        form = form_of(app)
        await until(pilot, lambda: form.query_one("#destination", Input).value != "")
        assert form.query_one("#destination", Input).value == "/models/from.flash"
        assert not form.query_one("#calibration-row").display
        form.query_one("#dtype", Select).value = "int8"
        form.query_one("#predictors", Select).value = TRAIN
        await pilot.pause()
        assert form.query_one("#calibration-row").display
        await write(pilot, "calibration", "text.txt")
        await previewed(pilot, "lossy: weights are rounded to int8")
        wish = form.wish()
        assert wish is not None
        assert wish.source == Path.home() / "from"
        assert wish.options == ConvertOptions("int8", TRAIN, Path("text.txt"))
        assert wish.options.lossy
        assert "lossy: predictors may leave out neurons" in text_of(app.screen, "preview")
        # A destination that the user wrote stays; one that was proposed follows the source.
        await write(pilot, "destination", "/mine")
        await write(pilot, "source", "/other")
        await pilot.pause(0.3)
        assert form.query_one("#destination", Input).value == "/mine"
    assert library.asked[-1][0] == Path("/other")


async def test_rounding_again_is_offered_where_it_is_needed(tmp_path: Path) -> None:
    refusal = UnsupportedModel("x.gguf: these weights would be rounded a second time. --requantise")
    app, _, library = convert_host("sys.exit('flashllm: round it with --requantise')")
    async with app.run_test() as pilot:
        await write(pilot, "source", "/x.gguf")
        await previewed(pilot)
        form = form_of(app)
        row = form.query_one("#rounding-row")
        assert not row.display
        library.refusal = refusal
        form.query_one("#dtype", Select).value = "mxfp4"
        await previewed(pilot, "would be rounded a second time")
        assert row.display
        library.refusal = None
        form.query_one("#rounding", Select).value = AGAIN
        await previewed(pilot, "lossy: what was rounded before may be again")
        wish = form.wish()
        assert wish is not None
        assert wish.options == ConvertOptions("mxfp4", requantise=True)
    # What only the weights say is said by the conversion.
    again, conversions, _ = convert_host("sys.exit('flashllm: round it with --requantise')")
    async with again.run_test() as pilot:
        await write(pilot, "source", str(tmp_path))
        await previewed(pilot)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: conversions.job is not None and conversions.job.status.is_over)
        again.screen.action_again()  # type: ignore[attr-defined]
        assert form_of(again).query_one("#rounding-row").display
    conversions.close()


async def test_a_source_that_was_given_and_the_cache() -> None:
    library = FakeLibrary()
    conversions = Conversions(scripted_job(""))
    app = Host(ConvertScreen(conversions, library, "/given"))
    async with app.run_test() as pilot:
        form = form_of(app)
        await until(pilot, lambda: form.query_one("#destination", Input).value != "")
        assert form.query_one("#destination", Input).value == "/models/given.flash"
        await until(pilot, lambda: form.query_one("#cache-row").display)
        form.query_one("#cache", Select).value = CHECKPOINT.path
        await until(
            pilot,
            lambda: form.query_one("#destination", Input).value == "/models/0123.flash",
        )
        assert form.query_one("#source", Input).value == str(CHECKPOINT.path)


async def test_source_and_destination_that_were_given() -> None:
    library = FakeLibrary()
    app = Host(ConvertScreen(Conversions(scripted_job("")), library, "~no-such-user/a", "/mine"))
    async with app.run_test() as pilot:
        await previewed(pilot)
        assert form_of(app).query_one("#destination", Input).value == "/mine"
        assert library.asked[-1][:2] == (Path("~no-such-user/a"), Path("/mine"))


async def test_a_cache_with_more_than_was_looked_at_says_so_in_its_list() -> None:
    cache = Checkpoint(Path("/hub"), "hub", "", 0, problem="has more than 1000 entries")
    found = (cache, CHECKPOINT)
    app = Host(ConvertScreen(Conversions(scripted_job("")), FakeLibrary(found=found)))
    async with app.run_test() as pilot:
        form = form_of(app)
        await until(pilot, lambda: form.query_one("#cache-row").display)
        form.query_one("#cache", Select).expanded = True
        await until(pilot, lambda: "hub: has more than 1000 entries" in shown(app))


async def test_esc_closes_an_open_list_before_the_page() -> None:
    app = Host(ConvertScreen(Conversions(scripted_job("")), FakeLibrary()))
    async with app.run_test() as pilot:
        field = form_of(app).query_one("#dtype", Select)
        field.focus()
        await pilot.press("enter")
        await until(pilot, lambda: field.expanded)
        await pilot.press("escape")
        await until(pilot, lambda: not field.expanded)
        assert isinstance(app.screen, ConvertScreen)
        assert field.has_focus
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ConvertScreen))


async def test_names_of_the_cache_do_not_act_on_the_terminal() -> None:
    odd = replace(CHECKPOINT, path=Path("/hub/\x1b]0;x\x07models--a\u202e/snapshots/1"))
    app = Host(ConvertScreen(Conversions(scripted_job("")), FakeLibrary(found=(odd,))))
    async with app.run_test() as pilot:
        form = form_of(app)
        await until(pilot, lambda: form.query_one("#cache-row").display)
        form.query_one("#cache", Select).value = odd.path
        source = form.query_one("#source", Input)
        await until(pilot, lambda: source.value == "/hub/models--a/snapshots/1")


async def test_the_picker_opens_what_it_converted(tmp_path: Path) -> None:
    conversions = Conversions(scripted_job("phase(1); make()"))
    app = Host(ModelPicker(FakeLibrary(), None, conversions))
    async with app.run_test() as pilot:
        await filled(pilot)
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ConvertScreen))
        await write(pilot, "source", str(tmp_path / "source"))
        await write(pilot, "destination", str(tmp_path / "made.flash"))
        await previewed(pilot)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "Open" in buttons(app))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.given is not NOTHING)
    assert app.given == ModelChoice(tmp_path / "made.flash")
    assert app.given.name == "made"


async def test_a_cancelled_conversion_leaves_the_picker() -> None:
    library = FakeLibrary()
    app = Host(ModelPicker(library))
    async with app.run_test() as pilot:
        await filled(pilot)
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ConvertScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ModelPicker))
        await until(pilot, lambda: library.searches == 2)
        assert app.given is NOTHING


def test_threads_are_not_left_behind() -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == "conversion"]
