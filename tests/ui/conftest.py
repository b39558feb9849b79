"""What all applications of these tests do without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flashllm.ui.widgets.footer import KeyFooter


@pytest.fixture
def footer() -> None:
    """For tests that look at the line of keys."""


@pytest.fixture(autouse=True)
def no_footer(request: pytest.FixtureRequest) -> Iterator[None]:
    """The line of keys is empty where `footer` is not asked for.

    It is looked at whenever other keys work than before: much of what a test computes.
    """

    with pytest.MonkeyPatch.context() as patch:
        if "footer" not in request.fixturenames:
            patch.setattr(KeyFooter, "renew", lambda _footer: None)
        yield
