"""A package index of made-up wheels on this machine, for the tests of the sweep and the radar."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PARALLEL = "megatron/core/parallel_state.py"
BATCH = "megatron/training/utils.py"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
MPU = "swift/megatron/utils/megatron_lm_utils.py"

# Made up: just enough for a rewrite's anchors, with no line of upstream's.
AFFECTED = """\
import torch

_EXPERT_DATA_PARALLEL_GROUP = None


def _set_global_memory_buffer():
    pass


def initialize_model_parallel(expert_model_parallel_size=1):
    global _EXPERT_DATA_PARALLEL_GROUP
    number = 0
    rank = torch.distributed.get_rank()
    for first in range(expert_model_parallel_size):
        ranks = range(first, torch.distributed.get_world_size(), expert_model_parallel_size)
        made = torch.distributed.new_group(ranks)
        if rank in ranks:
            _EXPERT_DATA_PARALLEL_GROUP = made
    _set_global_memory_buffer()
"""
CLEAN = """\
class MegatronEngine:
    def forward_backward_batch(self, data, loss_function, forward_only):
        number = 0
        batches, indices = prepare_micro_batches(data=data)
        losses = get_forward_backward_func()(num_microbatches=len(batches))
        return postprocess_batch_func(losses, indices, data)
"""
UNCLEAR = """\
class MegatronEngine:
    def forward_backward_batch(self):
        return get_megatron_mtp_loss(1)
"""


class FakeIndex:
    """The wheels of an index, and the requests that it got."""

    def __init__(self) -> None:
        self.url = ""
        self.pages: dict[str, list[str]] = {}
        self.wheels: dict[str, bytes] = {}
        self.asked: list[str] = []
        """The wheels that were requested."""
        self.refused: set[str] = set()
        """The wheels that are refused with an error."""
        self.cut: dict[str, int] = {}
        """How many downloads of a wheel break off half way."""
        self.together: threading.Barrier | None = None
        """If set, no wheel is sent before this many are requested at once."""

    def add(
        self,
        project: str,
        version: str,
        files: Mapping[str, str] | None = None,
        tag: str = "py3-none-any",
        yanked: bool = False,
        sha256: str | None = None,
    ) -> str:
        name = f"{project.replace('-', '_')}-{version}-{tag}.whl"
        data = wheel({"said.txt": name, **(files or {})})
        digest = sha256 or hashlib.sha256(data).hexdigest()
        attribute = ' data-yanked=""' if yanked else ""
        link = f'<a href="../../files/{name}#sha256={digest}"{attribute}>{name}</a><br>'
        self.pages.setdefault(project, []).append(link)
        self.wheels[name] = data
        return name

    def withdraw(self, name: str) -> None:
        """Remove a file from the index, as its owner can."""
        for links in self.pages.values():
            links[:] = [link for link in links if f">{name}<" not in link]


def wheel(files: Mapping[str, str]) -> bytes:
    """Return a wheel with these files; the bytes are always the same."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return out.getvalue()


@contextmanager
def serving(index: FakeIndex) -> Iterator[FakeIndex]:
    """Serve an index on a port of this machine, at ``index.url``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            last = self.path.rstrip("/").rpartition("/")[2]
            if self.path.startswith("/simple/"):
                if last in index.pages:
                    self.answer("text/html", "<!DOCTYPE html>\n" + "\n".join(index.pages[last]), {})
                else:
                    self.send_error(404)
                return
            index.asked.append(last)
            if index.together is not None:
                index.together.wait(timeout=300)
            if last in index.refused or last not in index.wheels:
                self.send_error(403)
            elif index.cut.get(last, 0):
                index.cut[last] -= 1
                self.answer("application/zip", index.wheels[last][:10], {"Content-Length": "1000"})
                self.close_connection = True
            else:
                self.answer("application/zip", index.wheels[last], {})

        def answer(self, kind: str, body: str | bytes, headers: Mapping[str, str]) -> None:
            data = body.encode() if isinstance(body, str) else body
            self.send_response(200)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
