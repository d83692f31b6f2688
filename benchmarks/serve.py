"""Does the server of docs/howto/export.md stand up to eight clients at once?

    python benchmarks/serve.py                         # 1,000 requests from 8 clients, MiniLM, sample data
    python benchmarks/serve.py --folder served         # a model of yours, exported by `mixwell export`

The server is the code block of the docs, as it stands there, in a process of its own on the loopback. Every answer is
compared with what the exported model says in this process; an answer with another status than 200, or another label, is
an error. Prints requests per second and the time of an answer, and ends with 1 if there was an error.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs" / "howto" / "export.md"


def server_code() -> str:
    return re.search(r"```python\n(# server\.py\n.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL).group(1)


@contextlib.contextmanager
def serving(folder: Path, patience: float = 120.0) -> Iterator[int]:
    """The port of a server that answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "server.py"
        script.write_text(server_code(), encoding="utf-8")
        told = open(Path(place) / "log", "w+", encoding="utf-8")  # noqa: SIM115 - closed below
        environment = {**os.environ, "MODEL": str(folder.resolve()), "PORT": str(port)}
        running = subprocess.Popen(
            [sys.executable, str(script)], cwd=place, env=environment, stdout=told, stderr=told, start_new_session=True
        )
        try:
            until = time.monotonic() + patience
            while not _answers(port):
                if running.poll() is not None or time.monotonic() > until:
                    told.seek(0)
                    raise RuntimeError(f"the server does not answer:\n{told.read()[-3000:]}")
                time.sleep(0.2)
            yield port
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGTERM)  # its workers too
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait(10)
            told.close()


def _answers(port: int) -> bool:
    try:
        return ask(port, "hello")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def ask(port: int, text: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = json.dumps({"text": text})
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if answer.status == 200 else content.decode()
    finally:
        connection.close()


def load_test(port: int, texts: list[str], wanted: list[str | None], clients: int) -> dict[str, Any]:
    """Send each text once, from several clients at a time; count what went wrong."""
    places = iter(range(len(texts)))
    lock, errors, times = threading.Lock(), [], []

    def client() -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            began = time.perf_counter()
            try:
                status, answer = ask(port, texts[place])
            except Exception as error:
                status, answer = 0, repr(error)
            took = time.perf_counter() - began
            with lock:
                times.append(took)
                if status != 200 or answer["label"] != wanted[place]:
                    errors.append((texts[place], status, answer, wanted[place]))

    began = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    return {"requests": len(times), "errors": errors, "seconds": seconds, "times": sorted(times)}


def expected(folder: Path, texts: list[str]) -> list[str | None]:
    """What the exported model answers in this process."""
    from mixwell.training.onnx import OnnxClassifier

    model = OnnxClassifier.load(folder)
    threshold = model.record["threshold"] or 0.0
    found = model.predict(texts)
    # Padding moves probabilities in the last digits: where that decides, either answer is right.
    for at in range(len(texts)):
        if abs(found.confidence(at) - threshold) < 1e-4:
            raise SystemExit(f"{texts[at]!r} lies on the threshold: take other texts")
    return [label if found.confidence(at) >= threshold else None for at, label in enumerate(found.labels)]


def sample_texts(count: int) -> list[str]:
    from mixwell import data

    texts = data.load(data.sample_folder()).test["text"].to_pylist()
    return [texts[at % len(texts)] for at in range(count)]


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="of mixwell export")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder
        if folder is None:
            import mixwell
            from mixwell import data
            from mixwell.training.export import export_onnx

            run = mixwell.train(
                str(data.sample_folder()), method="probe", output=f"{place}/run", cache_dir=place, quiet=True
            )
            folder = export_onnx(run.folder, f"{place}/served/model.onnx").file.parent
        texts = sample_texts(options.requests)
        wanted = expected(folder, texts)
        with serving(folder) as port:
            done = load_test(port, texts, wanted, options.clients)
    times = done["times"]
    print(
        f"{done['requests']} requests from {options.clients} clients: {len(done['errors'])} errors, "
        f"{done['requests'] / done['seconds']:.0f} per second, median {1e3 * statistics.median(times):.1f} ms, "
        f"99th percentile {1e3 * times[int(0.99 * (len(times) - 1))]:.1f} ms"
    )
    for error in done["errors"][:5]:
        print(error)
    return 1 if done["errors"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
