"""The interpreter's table of names: made larger once, and no larger afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flashllm.system import interned_names

MEASURE = """
import flashllm.ui.run, flashllm.ui.app, flashllm.ui.chat.screen, flashllm.engine.process.client
import flashllm.ui.screens.models, flashllm.ui.screens.sessions, psutil, sys
from flashllm.system.interned_names import settle_table_of_names
own = psutil.Process()
def grown(work):
    before = own.memory_info().rss
    work()
    return own.memory_info().rss - before
def names():
    for number in range(21_000):
        sys.intern(f"another name, {number}")
{settle}
print(grown(names))
"""


@pytest.mark.skipif(not interned_names.ARE_FREED, reason="names stay for ever here")
def test_names_that_come_and_go_take_nothing_once_the_table_is_settled() -> None:
    def grown(settle: str) -> int:
        code = MEASURE.replace("{settle}", settle)
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if k != "COVERAGE_PROCESS_CONFIG"},
        )
        return int(found.stdout)

    assert grown("") > 500_000
    assert grown("settle_table_of_names()") < 300_000
