"""Models by name: what a text stands for, wherever a converted model or a checkpoint is asked for.

A text is the first of these that fits:

1. the path of a converted model (where a checkpoint is asked for: of any directory, or a .gguf);
2. `demo` or `demo-moe`, or a name that `flashllm ls` shows: that of the model's directory, without
   `.flash`;
3. `org/name` or `org/name@revision`, a repository of the Hugging Face cache: its checkpoint, or the
   model that was converted from it.

So a path goes before a name, and a directory without a model hides no name; `./NAME` is never a
name. A name of two models is an error, which says both paths. Anything else is an error that names
what is near. A `Path` of Python code is always a path.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import FlashllmError, LayoutError, ModelNotFound, NotACheckpoint
from flashllm.library.directories import candidates, format_unfinished, looks_converted, name_of
from flashllm.library.formatting import clean
from flashllm.library.models import ModelChoice
from flashllm.system.demos import DEMO_NAME, DEMO_NAMES, demo_in

if TYPE_CHECKING:
    from flashllm.library.hub_names import RepositoryId
    from flashllm.settings.resolve import Settings

NEAREST_MOST = 3


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A converted model and its name."""

    name: str
    path: Path | None
    """None for a demo, which may have to be converted first."""

    @classmethod
    def at(cls, path: Path) -> NamedModel:
        """The model in a directory; an earlier version of a demo is not today's."""
        return cls(name_of(path), path)

    @property
    def choice(self) -> ModelChoice:
        """What opens it in the chat, where every version of a demo stands for today's."""
        demo = self.name if self.path is None else demo_in(self.path.name)
        if demo is not None:
            return ModelChoice(None, demo, demo)
        return ModelChoice(self.path, clean(self.name))


DEMO = NamedModel(DEMO_NAME, None)
DEMOS = tuple(NamedModel(name, None) for name in DEMO_NAMES)


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The models in some places by name; what is there is looked up at each call."""

    directories: tuple[Path, ...] = ()
    """Each is a model, or holds models."""
    models: tuple[Path, ...] = ()
    used: Callable[[], Iterable[str]] = tuple
    """What conversations name as their models."""

    def all(self) -> list[NamedModel]:
        """Every model, broken ones too, each directory once; the demos first."""
        models = (*self.models, *(Path(path) for path in self.used() if os.path.isabs(path)))
        found: dict[str, NamedModel] = {}
        for path, _ in candidates(self.directories, models):
            if looks_converted(path):
                found.setdefault(os.path.realpath(path), NamedModel.at(path))
        return [*DEMOS, *found.values()]

    def names(self) -> list[str]:
        """The names, each once, ready to be shown."""
        return list(dict.fromkeys(clean(model.name) for model in self.all()))

    def find(self, text: str) -> NamedModel:
        """The converted model that a text stands for.

        Errors: `ModelNotFound`, `LayoutError` where only a checkpoint is there, `NotACheckpoint`
        where something of another program is.
        """
        if not text:
            raise ModelNotFound("the name of the model is empty; leave it out for the demo")
        path = as_path(text)
        if looks_converted(path):
            return NamedModel.at(path)
        if (found := self.find_named(text)) is not None:
            return found
        repository = None if os.path.lexists(path) else _repository(text)
        if repository is not None:
            return self._converted_from(repository)
        refuse_foreign(text, path)
        if os.path.isdir(path):  # opening says what it lacks
            return NamedModel.at(path)
        raise ModelNotFound(self._format_missing(text, path))

    def find_named(self, text: str) -> NamedModel | None:
        """The model of that name, or whose directory is called so; None where there is none."""
        if not may_be_name(text):
            return None
        models = self.all()
        found = [model for model in models if model.name == text]
        found = found or [model for model in models if model.path and model.path.name == text]
        if len(found) > 1:
            raise ModelNotFound(
                f"{len(found)} models are called {text!r}: {_format_places(found)}; give the path"
            )
        return found[0] if found else None

    def typed(self, directory: Path) -> str:
        """What to type for the model in a directory: its name, where that stands for it."""
        name = name_of(directory)
        with contextlib.suppress(FlashllmError):
            found = self.find(name).path
            if found is not None and os.path.realpath(found) == os.path.realpath(directory):
                return name
        return str(directory)

    def find_checkpoint(self, text: str, *, whole: bool = True, others: Iterable[str] = ()) -> Path:
        """The directory, or the .gguf, that a text stands for; to be converted, it is `whole`.

        `others` are words that may have been meant too. Errors: `ModelNotFound`, `NotACheckpoint`.
        """
        from flashllm.convert import gguf_of
        from flashllm.library.hf_repository import check_whole, find_snapshot

        path = as_path(text)
        if not os.path.lexists(path) and (repository := _repository(text, bare=True)) is not None:
            path = find_snapshot(repository)
            if whole:
                check_whole(repository, path)
        elif not os.path.isdir(path) and (found := self.find_named(text)) is not None:
            where = "it comes with flashllm" if found.path is None else found.path
            raise NotACheckpoint(
                f"{text}: a converted model already ({where}); give the directory of a checkpoint"
            )
        if gguf_of(path) is not None:
            return path
        refuse_foreign(text, path)
        if not os.path.isdir(path):
            raise ModelNotFound(self._format_missing(text, path, checkpoint=True, others=others))
        return path

    def _converted_from(self, repository: RepositoryId) -> NamedModel:
        """The model that was made of a repository, if there is one; else an error."""
        from flashllm.library.hf_repository import find_snapshot, is_made_of

        made = [model for model in self.all() if _source(model)[0] == repository.name]
        if repository.revision or not made:
            snapshot = find_snapshot(repository)
            made = [model for model in made if is_made_of(_source(model)[1], snapshot)]
        if not made:
            raise LayoutError(
                f"{repository}: a checkpoint in the Hugging Face cache, not yet a converted model;"
                f" first: flashllm convert {repository}"
            )
        if len(made) > 1:
            raise ModelNotFound(
                f"{len(made)} models were made of {repository}: {_format_places(made)}; give the"
                " name or the path of one"
            )
        return made[0]

    def _format_missing(
        self, text: str, path: Path, checkpoint: bool = False, others: Iterable[str] = ()
    ) -> str:
        """That there is nothing, and what may have been meant."""
        from flashllm.library.hf_repository import cached_names
        from flashllm.settings.nearest import nearest

        if words := format_unfinished(path.name, (path.absolute().parent, *self.directories)):
            return f"{text}: {words}"
        names = [*others, *cached_names(), *(() if checkpoint else self.names())]
        last_parts = {name.rpartition("/")[2]: name for name in names}
        near = [last_parts.get(name, name) for name in nearest(text, last_parts, NEAREST_MOST)]
        what = "no such directory" if os.sep in text else "no model of that name"
        if checkpoint:
            what = "no model, checkpoint or shape of that name" if others else "no such checkpoint"
        words = f"{text}: there is {what}"
        if near:
            words += f"; did you mean {' or '.join(near)}?"
        else:
            words += "; names have no tags here." if ":" in text else "."
        listing = "`flashllm ls --checkpoints`" if checkpoint else "`flashllm ls`"
        return f"{words} {listing} lists what is here, `flashllm pull ORG/NAME` fetches more"


def usual_names() -> ModelNames:
    """The names in the places of the user's settings, as far as these make sense."""
    from flashllm.settings.resolve import load_settings

    return names_in(load_settings(problems=[]))


def names_in(settings: Settings) -> ModelNames:
    """The names in the places that `flashllm ls` looks at."""
    from flashllm.system.paths import models_dir

    home, usual = models_dir(), settings.value("model")
    directories = (*settings.chat.model_dirs, *([home] if os.path.isdir(home) else []))
    models = (as_path(usual),) if usual and not may_be_name(usual) else ()
    return ModelNames(directories, models, _readable_models_of_conversations)


def models_of_conversations() -> list[str]:
    """The models of saved conversations, as they name them; raises the store's errors."""
    from flashllm.system.paths import database_file

    if not database_file().exists():
        return []
    from flashllm.conversations.store import SessionStore

    with SessionStore() as store:
        return sorted({session.model for session in store.list() if session.model})


def _readable_models_of_conversations() -> list[str]:
    with contextlib.suppress(FlashllmError, OSError):
        return models_of_conversations()
    return []


def as_path(text: str) -> Path:
    """The path that a text may be."""
    return Path(os.path.expanduser(text))


def may_be_name(text: str) -> bool:
    """Whether a text can be the name of a model: a bare word, as a directory may be called."""
    return text not in ("", os.curdir, os.pardir) and os.sep not in text and text[0] != "~"


def refuse_foreign(text: str, path: Path) -> None:
    """`NotACheckpoint` for what another program made, with what to do instead."""
    from flashllm.library.foreign_formats import describe_foreign

    if words := describe_foreign(path):
        raise NotACheckpoint(f"{text}: {words}")


def _repository(text: str, *, bare: bool = False) -> RepositoryId | None:
    """The repository that a text names; `bare`: also one of the cache without an organisation."""
    from flashllm.library.hf_repository import cached_names
    from flashllm.library.hub_names import RepositoryId

    found = RepositoryId.parse(text)
    if found is None or "/" in found.name:
        return found
    return found if bare and found.name in cached_names() else None


def _source(model: NamedModel) -> tuple[str, dict[str, object]]:
    """What a whole model was made from: the checkpoint's name, and its files."""
    from flashllm.flash.manifest import read_manifest

    with contextlib.suppress(FlashllmError, OSError):
        if model.path is not None:
            manifest = read_manifest(model.path)
            files = manifest.source.get("files")
            return manifest.name, files if isinstance(files, dict) else {}
    return "", {}


def _format_places(models: Iterable[NamedModel]) -> str:
    return " and ".join(
        f"the {model.name} that comes with flashllm" if model.path is None else str(model.path)
        for model in models
    )
