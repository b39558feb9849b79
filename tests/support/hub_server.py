"""A server on the loopback that speaks as much of the hub's API as a download needs, faults too.

GET /api/models/ORG/NAME/revision/REV       what a repository holds, with sizes and hashes
GET /api/models/ORG/NAME/tree/REV           the same as a list
HEAD, GET /ORG/NAME/resolve/REV/FILE        a file; a large one is redirected
GET /cdn/SHA256                             where a large one is, by ranges
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".model")
"""Endings of files that are kept apart from git, as the hub does it."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Served:
    """A repository."""

    files: dict[str, bytes]
    commit: str = COMMIT
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    gated: bool = False
    private: bool = False
    tags: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    """Tokens that may read it, where it is gated or private."""

    def revisions(self) -> set[str]:
        return {self.commit, *self.branches}


@dataclass(frozen=True)
class Request:
    """What was asked."""

    method: str
    path: str
    headers: dict[str, str]
    """By names in lower case."""


@dataclass
class Faults:
    """What goes wrong, by the name of a file."""

    cut: dict[str, list[int]] = field(default_factory=dict)
    """After how many bytes of each answer the connection is closed; none of the later ones."""
    damage: dict[str, int] = field(default_factory=dict)
    """The byte that comes as another one."""
    status: dict[str, list[int]] = field(default_factory=dict)
    """The status of each answer, instead of the file; none of the later ones."""
    no_ranges: bool = False
    """Whether all of a file is sent where a part was asked for."""
    before: Callable[[str], None] = lambda _: None
    """Called with the name before a file is sent."""


class HubServer:
    """Serves `repositories` while its block runs; `requests` were asked of it."""

    def __init__(self) -> None:
        self.repositories: dict[str, Served] = {}
        self.requests: list[Request] = []
        self.faults = Faults()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def elsewhere(self) -> str:
        """The same server as another host, as large files are."""
        return f"http://localhost:{self.port}"

    def add(self, name: str, directory: Path, **options: Any) -> Served:
        """Serve the files of a directory."""
        files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
        served = self.repositories[name] = Served(files, **options)
        return served

    def sent(self, name: str) -> list[Request]:
        """Requests for the content of a file."""
        hashes = {
            hashlib.sha256(served.files[name]).hexdigest()
            for served in self.repositories.values()
            if name in served.files
        }
        return [
            one
            for one in self.requests
            if one.method == "GET"
            and (one.path.removeprefix("/cdn/") in hashes or one.path.endswith(f"/{name}"))
        ]

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving() -> Iterator[HubServer]:
    """A running server."""
    server = HubServer()
    thread = threading.Thread(target=server.run, name="hub", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def git_sha1(content: bytes) -> str:
    """What git calls a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(name: str) -> bool:
    return name.endswith(LARGE)


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
    if is_large(name):
        sha256 = hashlib.sha256(content).hexdigest()
        found["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
    return found


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            hub.requests.append(Request(self.command, path, headers))
            try:
                self._route(path)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _route(self, path: str) -> None:
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path):
                self._describe(match[1], match[2] or "revision", match[3] or "main")
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._resolve(match[1], match[2], match[3])
            elif match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
                self._cdn(match[1])
            else:
                self._refuse(404, "", "no such address")

        def _token(self) -> str | None:
            value = self.headers.get("Authorization")
            return value.removeprefix("Bearer ") if value else None

        def _found(self, name: str, revision: str) -> Served | None:
            """The repository, or an answer that says why not."""
            served = hub.repositories.get(name)
            hidden = served is not None and served.private and self._token() not in served.readers
            if served is None or hidden:
                # What is private is told as absent, as the hub does it.
                code = 404 if self._token() else 401
                self._refuse(code, "RepoNotFound", "Repository not found")
                return None
            if revision not in served.revisions():
                self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                return None
            return served

        def _describe(self, name: str, kind: str, revision: str) -> None:
            if (status := hub.faults.status.get("api", [])) and (code := status.pop(0)):
                self._refuse(code, "", "a fault")
                return
            served = self._found(name, revision)
            if served is None:
                return
            siblings = [_sibling(file, content) for file, content in served.files.items()]
            if kind == "tree":
                tree = [
                    {"type": "file", "path": s["rfilename"], "size": s["size"], "oid": s["blobId"]}
                    for s in siblings
                ]
                self._json(tree)
                return
            self._json(
                {
                    "id": name,
                    "modelId": name,
                    "sha": served.commit,
                    "private": served.private,
                    "gated": "auto" if served.gated else False,
                    "tags": list(served.tags),
                    "siblings": siblings,
                }
            )

        def _resolve(self, name: str, revision: str, file: str) -> None:
            served = self._found(name, revision)
            if served is None:
                return
            if served.gated and self._token() not in served.readers:
                words = f"Access to model {name} is restricted."
                self._refuse(403 if self._token() else 401, "GatedRepo", words)
                return
            if file not in served.files:
                self._refuse(404, "EntryNotFound", "Entry not found", served.commit)
                return
            if self._fails(file):
                return
            content = served.files[file]
            headers = {"X-Repo-Commit": served.commit, "Accept-Ranges": "bytes"}
            if is_large(file):
                sha256 = hashlib.sha256(content).hexdigest()
                headers |= {
                    "X-Linked-Etag": f'"{sha256}"',
                    "X-Linked-Size": str(len(content)),
                    "Location": f"{hub.elsewhere}/cdn/{sha256}",
                }
                self._send(302, b"", headers)
            else:
                self._send_file(file, content, headers | {"ETag": f'"{git_sha1(content)}"'})

        def _cdn(self, sha256: str) -> None:
            for served in hub.repositories.values():
                for file, content in served.files.items():
                    if hashlib.sha256(content).hexdigest() == sha256:
                        self._send_file(file, content, {"ETag": f'"{sha256}"'})
                        return
            self._refuse(404, "", "no such blob")

        def _fails(self, file: str) -> bool:
            status = hub.faults.status.get(file, [])
            if status and (code := status.pop(0)):
                self._refuse(code, "", "a fault")
                return True
            return False

        def _send_file(self, file: str, content: bytes, headers: dict[str, str]) -> None:
            hub.faults.before(file)
            if file in hub.faults.damage:
                at = hub.faults.damage[file]
                content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            match = _RANGE.fullmatch(self.headers.get("Range", ""))
            if match is None or hub.faults.no_ranges:
                self._send(200, content, headers, self._cut(file))
                return
            start = int(match[1])
            stop = int(match[2]) + 1 if match[2] else len(content)
            if start >= len(content):
                self._refuse(416, "", "beyond the end")
                return
            part = content[start:stop]
            headers |= {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(content)}"}
            self._send(206, part, headers, self._cut(file))

        def _cut(self, file: str) -> int | None:
            cuts = hub.faults.cut.get(file, [])
            return cuts.pop(0) if cuts and self.command == "GET" else None

        def _send(
            self, code: int, content: bytes, headers: dict[str, str], cut: int | None = None
        ) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(content[:cut] if cut is not None else content)
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True

        def _json(self, values: object) -> None:
            self._send(200, json.dumps(values).encode(), {"Content-Type": "application/json"})

        def _refuse(self, code: int, error: str, words: str, commit: str = "") -> None:
            headers = {"X-Error-Message": words, "Content-Type": "application/json"}
            if error:
                headers["X-Error-Code"] = error
            if commit:
                headers["X-Repo-Commit"] = commit
            self._send(code, json.dumps({"error": words}).encode(), headers)

    return Handler
