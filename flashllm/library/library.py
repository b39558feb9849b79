"""The models of this machine, for whoever chooses one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from flashllm.errors import CannotCreate, FlashllmError
from flashllm.flash.demo_places import demo_directory, is_made
from flashllm.library import hf_cache
from flashllm.library.conversion_options import ConvertOptions
from flashllm.library.conversion_preview import Preview, preview
from flashllm.library.formatting import format_error
from flashllm.library.hf_cache import CACHED_PREFIX
from flashllm.library.hub_names import gguf_stem
from flashllm.library.models import Checkpoint, FoundModel
from flashllm.library.names import names_in
from flashllm.library.runtime_memory import interpreter_bytes, kept_bytes
from flashllm.library.scan import Conditions, examine, find_models
from flashllm.planning.plan import Plan
from flashllm.settings.resolve import Settings
from flashllm.system.demos import DEMO_NAME, DEMO_NAMES, EXPERTS_DEMO_NAME
from flashllm.system.paths import models_dir

DEMO_FEATURES = {
    DEMO_NAME: ("5 layers of 1536 neurons, relu", "f16"),
    EXPERTS_DEMO_NAME: ("4 layers of 16 experts, 2 a token, silu", "f16"),
}
"""Shape and encoding of those that come with the package, as the converter describes them: it would
load ten megabytes and more for these words, which stay."""
NAMES_MAX = 100
"""Names that are tried for a model whose own is taken."""


@dataclass(frozen=True, slots=True)
class Library:
    """Where models may be, and what they would be run in. Looking and previewing take seconds."""

    directories: tuple[Path, ...] = ()
    """Each is a model, or holds models."""
    models: tuple[Path, ...] = ()
    """Those that are known by themselves: named in settings."""
    used: Callable[[], Iterable[str]] = tuple
    """What conversations name as their models; asked when models are looked for."""
    home: Path | None = None
    """Where converted models go, and are looked for."""
    given: Conditions = field(default_factory=Conditions)
    """What models would be run in; the memory of a process is measured where it is not known."""

    def scan(self) -> Iterator[FoundModel]:
        """Models as they are found: the demos, those known, those in directories.

        Where the memory of a process has yet to be measured, which takes seconds, models come a
        second time, with what follows from it.
        """
        demos = [_demo(name) for name in DEMO_NAMES]
        made = [demo for demo in demos if isinstance(demo, Path)]
        to_be_made = iter([demo for demo in demos if isinstance(demo, FoundModel)])
        directories = list(self.directories)
        if self.home is not None and os.path.isdir(self.home):
            directories.append(self.home)
        # A conversation names its model by a path; another name is no place to look.
        models = (*self.models, *(Path(name) for name in self.used() if os.path.isabs(name)))
        conditions = self.conditions(kept=True)
        whole = []
        for found in find_models(directories, models, conditions, demos=made):
            if not found.is_demo:
                yield from to_be_made
            yield found
            if not found.problem:
                whole.append(found)
        yield from to_be_made
        if conditions.interpreter_bytes is None and whole:
            conditions = self.conditions()
            for found in whole:
                again = examine(found.path, conditions)
                yield replace(again, is_demo=found.is_demo, name=found.name)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """What could be converted."""
        return hf_cache.checkpoints()

    def conditions(self, kept: bool = False) -> Conditions:
        """What models would be run in; with `kept` as far as that is known without measuring."""
        if self.given.interpreter_bytes is not None:
            return self.given
        measured = kept_bytes() if kept else interpreter_bytes()
        return replace(self.given, interpreter_bytes=measured)

    def preview(self, source: Path, destination: Path, options: ConvertOptions) -> Preview:
        """What a conversion would make; an error where it would make nothing.

        A source that is no path may be `org/name` of the Hugging Face cache.
        """
        from flashllm.convert import check_destination
        from flashllm.library.names import usual_names

        if not os.path.lexists(source):
            source = usual_names().find_checkpoint(str(source))
        found = preview(source, destination, options, self.conditions())
        if destination.parent != self.home or os.path.lexists(destination):
            check_destination(destination)
        return found

    def prepare(self, destination: Path) -> None:
        """Makes the home of models, where that is where one is to go."""
        if destination.parent == self.home:
            try:
                self.home.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise CannotCreate(f"{self.home}: {problem.strerror}") from problem

    def destination(self, source: Path) -> Path:
        """Where a checkpoint's model would go: a name that is free."""
        parts = source.absolute().parts
        is_cached = parts[-2:-1] == ("snapshots",) and parts[-3].startswith(CACHED_PREFIX)
        name = parts[-3].removeprefix(CACHED_PREFIX) if is_cached else gguf_stem(source.name)
        home = self.home if self.home is not None else source.absolute().parent
        base = home / f"{name.rpartition('--')[2] or 'model'}.flash"
        names = (base, *(base.with_stem(f"{base.stem}-{n}") for n in range(2, NAMES_MAX)))
        return next((path for path in names if not os.path.lexists(path)), base)


def usual_library(
    settings: Settings,
    *,
    directories: Iterable[Path] = (),
    used: Callable[[], Iterable[str]] = tuple,
    application_bytes: int = 0,
    open_plan: Plan | None = None,
) -> Library:
    """The library of the settings; `directories` more to look in, and models that sessions `used`.

    Without a ceiling in the settings it is that of the model which is open now, by `open_plan`: it
    is closed before another is opened, and its memory does not count as available until then. It
    also tells what a process takes, which to measure would take as much again.
    """
    options = settings.model_options
    memory, taken = options.memory, None
    if open_plan is not None:
        memory, taken = memory or open_plan.ceiling_bytes, open_plan.split["interpreter"]
    return Library(
        directories=(*directories, *settings.chat.model_dirs),
        models=names_in(settings).models,
        used=used,
        home=models_dir(),
        given=Conditions(taken, options.having(memory=memory, application_bytes=application_bytes)),
    )


def _demo(name: str) -> Path | FoundModel:
    """Where a demo is, or a line about it where it is yet to be made."""
    try:
        directory = demo_directory(name)
        if is_made(directory):
            return directory
    except (FlashllmError, OSError) as problem:
        where = Path(name)
        words = format_error(problem, where)
        return FoundModel(where, name, problem=words, is_demo=True)
    features, encoding = DEMO_FEATURES[name]
    remarks = ("made when it is opened",)
    return FoundModel(
        directory, name, features=features, encoding=encoding, remarks=remarks, is_demo=True
    )
