"""What goes between stages, over torch's gloo: announcements of calls, hidden states and logits.

A call has a number, and each message the number of its call, so that what is left of a call that
failed is passed over. An error goes the way of the hidden states: each stage ends the call
and passes it on, and the first one gets it in place of logits.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from flashllm.engine.process.messages import Failure
from flashllm.errors import EngineLost, FlashllmError
from flashllm.large_arrays import Floats

RENDEZVOUS_SECONDS = 120.0
"""So long the stages wait for one another at the beginning."""
SILENCE_SECONDS = 3600.0
"""So long a stage waits for a message; one that ended is noticed at once."""
Meeting = Path | tuple[str, int]
"""Where stages find each other: a new file, on one machine; (host, port) of the first one."""
_LOOPBACKS = ("localhost", "127.0.0.1", "::1")
_ANNOUNCEMENT, _HIDDEN, _LOGITS = 1, 2, 3
"""Tags of messages, of which each kind is in order."""
_FLOATS, _FAILURE = 0, 1
_SENT_MOST = 4
"""Hidden states that may be on their way; more wait for the next stage."""
_LET_GO_WITHIN = timedelta(seconds=60)
"""What was received before is let go of at once; but of a peer that died since, gloo may not tell
that it was, and would wait for `SILENCE_SECONDS`."""
_T = TypeVar("_T")


class GlooLink:
    """A stage's connection with the others; `StageLink` for its transformer."""

    def __init__(self, rank: int, stages: int, meeting: Meeting) -> None:
        """The first stage listens at a (host, port) of its own machine."""
        self.rank, self.stages = rank, stages
        self.call = 0
        """Number of the call that is computed."""
        self._meeting = meeting
        self._sent: deque[tuple[Any, Tensor]] = deque()
        """Hidden states under way, and who holds them until then."""
        self._others: deque[tuple[int, int, Any, Tensor]] = deque()
        """The same of everything else, with call and stage."""
        self._failed: set[int] = set()
        """Calls of which something may never be asked for."""
        self._abandoned: list[tuple[int, int, Any, Tensor]] = []

    def connect(self) -> None:
        """Waits for all stages; `EngineLost` after two minutes."""
        wait = timedelta(seconds=RENDEZVOUS_SECONDS)
        store: Any
        try:
            if isinstance(self._meeting, Path) or self._meeting[0] in _LOOPBACKS:
                # Else gloo takes the interface of this machine's name, which may have none.
                loopback = "lo0" if sys.platform == "darwin" else "lo"
                os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
            if isinstance(self._meeting, Path):
                store = dist.FileStore(  # type: ignore[attr-defined]
                    str(self._meeting), self.stages
                )
            else:
                host, port = self._meeting
                is_first = self.rank == 0
                store = dist.TCPStore(  # type: ignore[attr-defined]
                    host, port, self.stages, is_first, timeout=wait, wait_for_workers=False
                )
            store.set_timeout(wait)
            dist.init_process_group(
                "gloo",
                store=store,
                rank=self.rank,
                world_size=self.stages,
                timeout=timedelta(seconds=SILENCE_SECONDS),
            )
        except RuntimeError as error:
            reason = str(error).partition("\n")[0][:200]
            raise EngineLost(
                f"stage {self.rank}: not all of {self.stages} stages have met ({reason}); start"
                " each of them once within two minutes, and name an address of the first one"
            ) from error

    def finish(self) -> None:
        """Waits until what was announced last has been received."""
        self.call += 2
        self._forget_old()

    def close(self) -> None:
        """Ends the connection; the others notice."""
        if dist.is_initialized():
            dist.destroy_process_group()

    # As a `StageLink`

    @property
    def is_first(self) -> bool:
        """Whether the stage has the embedding."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage has the head."""
        return self.rank == self.stages - 1

    @property
    def micro_batches(self) -> int:
        """Two pieces of a block for each stage: while it computes one, the next one comes."""
        return 2 * self.stages

    @property
    def in_flight(self) -> int:
        """The first stage goes on while the others compute; they give what they have at once."""
        return self.stages if self.is_first else 0

    def receive(self, tokens: int) -> Floats:
        """Hidden states [tokens, d_model] from the stage before."""
        hidden: Floats = self._floats(self.rank - 1, _HIDDEN).numpy()
        assert len(hidden) == tokens, "all stages compute the same tokens"
        return hidden

    def send(self, hidden: Floats) -> None:
        """Passes hidden states on to the next stage; the last one has none."""
        if not self.is_last:
            going = torch.from_numpy(np.ascontiguousarray(hidden))
            self._send(going, _FLOATS, self.rank + 1, _HIDDEN)
            while len(self._sent) > 2 * _SENT_MOST:
                self._wait_for_sent()

    def logits(self, tokens: int) -> NDArray[np.float32]:
        """At the first stage [tokens, vocab] from the last one; elsewhere [tokens, 0]."""
        if not self.is_first:
            return np.empty((tokens, 0), np.float32)
        found: NDArray[np.float32] = self._floats(self.stages - 1, _LOGITS).numpy()
        assert len(found) == tokens, "all stages compute the same tokens"
        return found

    def reply(self, logits: NDArray[np.float32]) -> None:
        """Sends logits from the last stage to the first."""
        self._send(torch.from_numpy(logits), _FLOATS, 0, _LOGITS)

    # Of a stage's calls

    def announce(self, values: dict[str, Any]) -> None:
        """Tells all other stages what is computed next, under a new number."""
        self.call += 1
        self._forget_old()
        raw = json.dumps({"call": self.call, **values}).encode()
        for stage in range(1, self.stages):
            self._send(_bytes(raw), _FLOATS, stage, _ANNOUNCEMENT)

    def announced(self) -> dict[str, Any]:
        """The next call, at a stage that is not the first."""
        _, _, raw = self._message(0, _ANNOUNCEMENT)
        values: dict[str, Any] = json.loads(raw.numpy().tobytes())
        self.call = int(values.pop("call"))
        self._forget_old()
        return values

    def fail(self, error: FlashllmError) -> None:
        """Passes an error on in place of what the next stage waits for."""
        failure = Failure.of(error)
        self._failed.add(self.call)
        raw = json.dumps({"kind": failure.kind, "text": failure.text}).encode()
        peer, tag = (0, _LOGITS) if self.is_last else (self.rank + 1, _HIDDEN)
        self._send(_bytes(raw), _FAILURE, peer, tag)

    def report(self, error: FlashllmError | None) -> None:
        """Tells the first stage whether this one is ready."""
        failure = None if error is None else Failure.of(error)
        values = None if failure is None else {"kind": failure.kind, "text": failure.text}
        self._send(_bytes(json.dumps(values).encode()), _FLOATS, 0, _ANNOUNCEMENT)

    def reported(self, stage: int) -> None:
        """Waits until another stage is ready; raises what it lacks."""
        _, _, raw = self._message(stage, _ANNOUNCEMENT)
        values = json.loads(raw.numpy().tobytes())
        if values is not None:
            raise Failure(values["kind"], f"stage {stage}: {values['text']}").error()

    def _floats(self, peer: int, tag: int) -> Tensor:
        """The next message of this call; raises one that is an error."""
        while True:
            call, kind, payload = self._message(peer, tag)
            if call < self.call:
                continue
            assert call == self.call, "calls are announced before they are computed"
            if kind == _FAILURE:
                values = json.loads(payload.numpy().tobytes())
                raise Failure(values["kind"], values["text"]).error()
            return payload

    def _message(self, peer: int, tag: int) -> tuple[int, int, Tensor]:
        """(call, kind, payload) of the next message from another stage."""
        header = torch.empty(5, dtype=torch.int64)
        self._do(peer, lambda: dist.recv(header, peer, tag=tag))
        call, kind, is_float, rows, columns = header.tolist()
        dtype = torch.float32 if is_float else torch.uint8
        payload = torch.empty((rows, columns), dtype=dtype)
        if rows * columns:
            self._do(peer, lambda: dist.recv(payload, peer, tag=tag))
        return call, kind, payload

    def _send(self, payload: Tensor, kind: int, peer: int, tag: int) -> None:
        is_float = payload.dtype == torch.float32
        header = torch.tensor([self.call, kind, is_float, *payload.shape], dtype=torch.int64)
        for tensor in (header, payload) if payload.numel() else (header,):
            work: Any = self._do(peer, functools.partial(dist.isend, tensor, peer, tag=tag))
            if tag == _HIDDEN:
                self._sent.append((work, tensor))
            else:
                self._others.append((self.call, peer, work, tensor))

    def _forget_old(self) -> None:
        """Lets go of what was sent before the last call, which has been received by now."""
        while self._others and self._others[0][0] < self.call - 1:
            call, peer, work, _ = old = self._others.popleft()
            if call in self._failed:
                self._abandoned.append(old)
            else:
                self._do(peer, functools.partial(work.wait, _LET_GO_WITHIN))

    def _wait_for_sent(self) -> None:
        work, _ = self._sent.popleft()
        self._do(self.rank + 1, work.wait)

    def _do(self, peer: int, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0].partition(". This is")[0].rpartition("] ")[2]
            raise EngineLost(
                f"stage {peer} of {self.stages} has ended, or cannot be reached ({reason}); its own"
                " messages say why"
            ) from error


def _bytes(raw: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy())[None]
