"""What a terminal of 80 and of 140 columns shows, captured through a real pseudo-terminal: no word is cut."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from pathlib import Path

import pytest
import typer
from test_training import make_model, rows, write_csv

from forked import Command
from mixwell import cli
from mixwell.utils.console import fit_table

WIDE = 1000
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]")


def on_terminal(words: list[str], columns: int) -> list[str]:
    """Run mixwell with stdout on a terminal of so many columns; return its lines without control sequences."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "CI")}
    command = Command(words, terminal=os.ttyname(slave), env={**kept, "TERM": "xterm-256color"})
    # Its side stays open until it has ended: before it has opened its own, a closed one would be the end.
    threading.Thread(target=lambda: (command.process.join(), os.close(slave)), daemon=True).start()
    parts = []
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(master)
    done = command.wait()
    assert done.returncode == 0, done.stderr
    text = _CONTROL.sub("", b"".join(parts).decode()).replace("\r\n", "\n")
    return text.rstrip("\n").split("\n")


def words_of(lines: list[str]) -> set[str]:
    """The words of some lines; frames and rules are none."""
    plain = [re.sub(r"[│╭╮╰╯─┃┏┓┗┛━┳┻╇┡┩┴┬┼├┤└┘┌┐╈]|-{3,}", " ", line) for line in lines]
    return {word for line in plain for word in line.split()}


def check(lines: list[str], columns: int, wide: set[str]) -> None:
    """Nothing is wider than the terminal, nothing is shortened, every word is one of the wide capture."""
    assert max(map(len, lines)) <= columns, max(lines, key=len)
    assert "…" not in "\n".join(lines)
    assert words_of(lines) - wide == set()


@pytest.mark.parametrize("command", ["", "train", "compare", "report"])
def test_help(command: str) -> None:
    words = [command, "--help"] if command else ["--help"]
    wide = words_of(on_terminal(words, WIDE))
    for columns in (80, 140):
        lines = on_terminal(words, columns)
        check(lines, columns, wide)
    if command == "compare":
        assert "[settings];" in wide


def test_defaults_and_brackets_are_in_every_help() -> None:
    """Each option that takes a value names its default, or Typer shows it; brackets come through."""
    missing = []
    for name in cli.commands():
        group = typer.main.get_command(cli.build_app([name]))
        top = group.commands[name]  # type: ignore[attr-defined]
        for part in getattr(top, "commands", {name: top}).values():
            for one in part.params:
                about = getattr(one, "help", "") or ""
                flag = getattr(one, "is_flag", False) or one.name == "help"
                if not (one.required or flag or one.default not in (None, []) or "Default" in about):
                    missing.append(f"{name} {one.name}")
                assert "[" not in about.replace("\\[", ""), (name, one.name)
    assert [one for one in missing if not one.endswith(" data")] == []


def test_methods() -> None:
    wide = words_of(on_terminal(["methods"], WIDE))
    for columns in (80, 140):
        lines = on_terminal(["methods"], columns)
        check(lines, columns, wide)
        assert any(re.match(r"amplify +After attention, in every block", line) for line in lines)
    assert {"Cost:", "Use:"} <= wide


def test_train_and_compare(tmp_path: Path) -> None:
    """Each trains once, on the narrow terminal; the same command again only prints."""
    make_model(tmp_path / "tiny")
    write_csv(tmp_path / "films.csv", rows(60))
    common = ["--model", str(tmp_path / "tiny"), "--epochs", "1", "--batch-size", "16"]
    train = ["train", str(tmp_path / "films.csv"), *common, "--method", "amplify", "--folds", "0", "--quiet"]
    narrow = on_terminal([*train, "--output", str(tmp_path / "runs" / "films")], 80)
    assert any(str(tmp_path / "runs" / "films" / "report.html") in line for line in narrow)
    again = ["train", "--resume", str(tmp_path / "runs" / "films")]
    wide = words_of(on_terminal(again, WIDE))
    # A path may be longer than the terminal, and must not be broken by us: it is copied.
    told = [line for line in narrow if str(tmp_path) not in line]
    check(told, 80, wide)
    check([line for line in on_terminal(again, 140) if str(tmp_path) not in line], 140, wide)

    compare = ["compare", str(tmp_path / "films.csv"), *common, "--methods", "amplify:consistent=true", "--seeds", "2"]
    compare += ["--no-references", "--workers", "0", "--quiet", "--output", str(tmp_path / "runs" / "films-compare")]
    told = [line for line in on_terminal(compare, 80) if str(tmp_path) not in line]
    wide = words_of(on_terminal(compare, WIDE))
    missing = next(number for number, line in enumerate(told) if line.startswith("Not shown at 80 columns: "))
    assert "ECE" in " ".join(told[missing:])
    check(
        told,
        80,
        wide | {"Not", "shown", "at", "80", "columns:"} | {f"{word}," for word in wide} | {f"{word}." for word in wide},
    )
    assert any("AMPLIFY," in line for line in told)
    page = (tmp_path / "runs" / "films-compare" / "report.html").read_text()
    assert '<a href="../films/report.html">films</a>' in page
    assert cli.main(["report", str(tmp_path / "runs" / "films")]) == 0
    assert 'href="../films-compare/report.html"' in (tmp_path / "runs" / "films" / "report.html").read_text()


def test_a_table_that_does_not_fit_names_what_it_leaves_out() -> None:
    lines = [
        ["method", "accuracy", "difference", "last"],
        ["a long name of a method", "91.0 ± 0.2", "+1.0 [+0.1, +1.9]", "x" * 20],
    ]
    assert fit_table(lines)[2] == f"a long name of a method  91.0 ± 0.2  +1.0 [+0.1, +1.9]  {'x' * 20}"
    narrow = fit_table(lines, 48)
    assert max(map(len, narrow)) <= 48 and narrow[-1] == "Not shown at 48 columns: last."
    assert "91.0 ± 0.2" in narrow[2] and any("[+0.1, +1.9]" in line for line in narrow)


def test_the_threshold_is_wrapped_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs of the other tests are too small to have one."""
    from types import SimpleNamespace

    from mixwell.report.terminal import show_run

    monkeypatch.setattr("mixwell.utils.console.screen_width", lambda: 80)
    about = {"threshold": 0.89, "precision": 0.951, "coverage": 0.6, "wanted": 0.95}
    metrics = {"temperature": None, "best_epoch": 1, "epochs": 1, "method": {"method": "none"}, "abstain": about}
    show_run(SimpleNamespace(metrics=metrics, was_finished=False, folder=Path("runs")))
    lines = capsys.readouterr().out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("threshold    0.890: 95.1%"))
    assert max(map(len, lines)) <= 80 and lines[at].endswith("get") and lines[at + 1].startswith(" " * 13 + "one (")
