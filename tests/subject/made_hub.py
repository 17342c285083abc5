"""A Hub on this machine, and models small enough to be made in a test: nothing is downloaded from anywhere else."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "c" * 40
BERT = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 100}


class Hub(ThreadingHTTPServer):
    """Answers what a download of the Hub asks, of one folder that lies here; ``gated`` it shows nobody."""

    def __init__(self, folder: Path, *, gated: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.folder = folder
        self.gated = gated
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        if self.server.gated:
            return self._send(403, {"X-Error-Code": "GatedRepo"}, b"{}", with_content)
        if "/tree/" in path:
            return self._send(200, {"Content-Type": "application/json"}, self._tree(), with_content)
        if path.startswith("/api/models/"):
            about = {"id": "someone/tiny", "sha": COMMIT, "siblings": []}
            return self._send(200, {"Content-Type": "application/json"}, json.dumps(about).encode(), with_content)
        file = self.server.folder / path.partition(f"/resolve/{COMMIT}/")[2]
        if not file.is_file():
            return self._send(404, {"X-Error-Code": "EntryNotFound"}, b"", with_content)
        content = file.read_bytes()
        about = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return self._send(200, about, content, with_content)

    def _tree(self) -> bytes:
        root = self.server.folder
        files = [file for file in sorted(root.rglob("*")) if file.is_file()]
        return json.dumps(
            [
                {
                    "type": "file",
                    "path": file.relative_to(root).as_posix(),
                    "size": file.stat().st_size,
                    "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                }
                for file in files
            ]
        ).encode()

    def _send(self, code: int, headers: dict[str, str], content: bytes, with_content: bool) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_content:
            self.wfile.write(content)


@contextmanager
def hub(folder: Path, *, gated: bool = False) -> Iterator[Hub]:
    server = Hub(folder, gated=gated)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def in_cache(cache: Path, name: str, made: Path) -> Path:
    """Lay the files of a folder out as the cache of the Hub does, as revision main. Returns the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    made.rename(snapshot)
    return snapshot


def tiny_model(cls: str, seed: int = 0, **settings: Any) -> Any:
    """A model of transformers."""
    import torch
    import transformers

    torch.manual_seed(seed)
    kind: Any = getattr(transformers, cls)
    return kind(kind.config_class(**settings)).eval()


def tokenizer(folder: Path) -> None:
    """A tokenizer of words, written into the folder of a model."""
    import tokenizers
    import transformers

    from togi.subject.sources.media import TEXTS

    special = ["[PAD]", "[UNK]", "[MASK]", "[EOS]"]
    words = dict.fromkeys(" ".join(TEXTS).replace(".", " .").replace(",", " ,").split())
    numbered = {word: number for number, word in enumerate([*special, *words][: BERT["vocab_size"]])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbered, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", eos_token="[EOS]"
    ).save_pretrained(folder)


def noise(folder: Path) -> None:
    """A pipeline of diffusers, with weights drawn."""
    import diffusers

    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8,),
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        layers_per_block=1,
        norm_num_groups=4,
    )
    diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler()).save_pretrained(folder)
