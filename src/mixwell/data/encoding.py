"""Opening text files: gzip, encoding, and the errors of both."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from mixwell.utils.errors import DataError

_BLOCK = 1 << 20
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: its mark begins with the UTF-16 one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def one_line(error: BaseException) -> str:
    """What another library says of an error, on one line and not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 200 else text[:200] + "...").rstrip(".:")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of opening, unpacking and decoding `path` into a `DataError` that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: the gzip data are truncated or damaged ({error}); fetch or pack the file again"
        ) from error
    except UnicodeError as error:
        raise DataError(
            f"{path}: not valid {getattr(error, 'encoding', 'text')} ({getattr(error, 'reason', error)}); "
            "save the file as UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or one_line(error)})") from error


def check_file(path: Path) -> None:
    """Raise a `DataError` unless `path` is a file with at least one byte."""
    with explained(path):
        if path.is_dir():
            raise DataError(f"{path}: a folder, where a file was expected")
        if os.stat(path).st_size == 0:
            raise DataError(f"{path}: the file is empty; expected a header line or records")


def open_bytes(path: Path) -> BinaryIO:
    """Open `path` for reading bytes, unpacked when it is gzip (by name or by its first two bytes)."""
    with open(path, "rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    if packed or path.name.casefold().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def detect(path: Path) -> tuple[str, str]:
    """Read `path` once, in blocks, and tell its encoding and what to note about it; nothing for plain UTF-8.

    A byte order mark decides; without one the file is UTF-8 if all of it decodes, else Windows-1252, which is
    noted. Files that are neither, and files with NUL bytes, raise a `DataError` that names the line.
    """
    check_file(path)
    with explained(path), open_bytes(path) as stream:
        block = stream.read(_BLOCK)
        if not block:
            raise DataError(f"{path}: the file is empty; expected a header line or records")
        for mark, name in _BOMS:
            if block.startswith(mark):
                return _check_marked(path, stream, block, name)
        decoders = {name: codecs.getincrementaldecoder(name)() for name in ("utf-8", "cp1252")}
        faults: dict[str, tuple[int, int]] = {}
        lines = 0
        while True:
            if (position := block.find(b"\0")) >= 0:
                line = lines + block.count(b"\n", 0, position) + 1
                raise DataError(
                    f"{path}: line {line} has a NUL byte; remove it, or save the file as UTF-8 if it is "
                    "UTF-16 without a byte order mark"
                )
            for name, decoder in list(decoders.items()):
                try:
                    decoder.decode(block, final=not block)
                except UnicodeDecodeError as error:
                    # `error.object` may begin with bytes kept from the block before; lines do not.
                    position = min(max(error.start - (len(error.object) - len(block)), 0), max(len(block) - 1, 0))
                    faults[name] = (lines + block.count(b"\n", 0, position) + 1, error.object[error.start])
                    del decoders[name]
            if not decoders or not block:
                break
            lines += block.count(b"\n")
            block = stream.read(_BLOCK)
    if "utf-8" in decoders:
        return "utf-8", ""
    line, byte = faults["utf-8"]
    if "cp1252" in decoders:
        note = f"{path.name}: not UTF-8 (byte 0x{byte:02x} in line {line}), read as Windows-1252; "
        return "cp1252", note + "save it as UTF-8 if letters look wrong"
    line, byte = faults["cp1252"]
    raise DataError(
        f"{path}: line {line} has byte 0x{byte:02x}, which is neither UTF-8 nor Windows-1252; save the file as UTF-8"
    )


def _check_marked(path: Path, stream: BinaryIO, block: bytes, name: str) -> tuple[str, str]:
    """Decode a file with a byte order mark from end to end, so that faults show before any row is used."""
    decoder = codecs.getincrementaldecoder(name)()
    lines = 1
    while True:
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeError as error:
            raise DataError(
                f"{path}: near line {lines} the bytes are not valid {name} as the byte order mark says; "
                "save the file as UTF-8"
            ) from error
        if (position := text.find("\0")) >= 0:
            raise DataError(f"{path}: line {lines + text.count(chr(10), 0, position)} has a NUL character; remove it")
        if not block:
            break
        lines += text.count("\n")
        block = stream.read(_BLOCK)
    return name, "" if name == "utf-8-sig" else f"{path.name}: read as {name.upper()} (byte order mark)"


@contextlib.contextmanager
def open_text(path: Path, encoding: str, newline: str | None) -> Iterator[TextIO]:
    """Open `path` for reading text.

    Args:
        path: the file, plain or gzip.
        encoding: the one that `detect` returned.
        newline: as in `open`; the csv module wants the empty string.
    """
    with explained(path), io.TextIOWrapper(open_bytes(path), encoding=encoding, newline=newline) as stream:
        yield stream
