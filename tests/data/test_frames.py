"""Rows in memory, Excel files, and texts of several columns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mixwell import data
from mixwell.utils.errors import DataError, OptionError

ROWS = [
    {"title": f"title {at}", "body": None if at % 5 == 0 else f"some words {at}", "label": "ab"[at % 2], "id": at}
    for at in range(40)
]


def frames() -> dict[str, Any]:
    import datasets
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    pandas = pd.DataFrame(ROWS)
    saved = datasets.Dataset.from_list(ROWS)
    return {
        "pandas": pandas,
        "categories": pandas.astype({"label": "category"}),
        "index": pandas.set_index("id"),
        "polars": pl.DataFrame(ROWS),
        "lazy": pl.DataFrame(ROWS).lazy(),
        "arrow": pa.Table.from_pylist(ROWS),
        "dataset": saved,
        "splits": datasets.DatasetDict({"train": saved}),
    }


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> data.TextData:
    import pandas as pd

    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    pd.DataFrame(ROWS).to_csv(path, index=False)
    return data.load(path, text="title,body")


@pytest.mark.parametrize("kind", ["pandas", "categories", "index", "polars", "lazy", "arrow", "dataset", "splits"])
def test_frames_are_read_as_the_file_is(kind: str, wanted: data.TextData) -> None:
    found = data.load(frames()[kind], text="title,body")
    assert found.fingerprint == wanted.fingerprint
    assert found.columns == {"text": "title,body", "label": "label"}
    assert found.notes[0] == "columns found: label = 'label'"


def test_excel_is_read_as_the_file_is(tmp_path: Path, wanted: data.TextData, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    path = tmp_path / "rows.xlsx"
    with pd.ExcelWriter(path) as writer:
        pd.DataFrame(ROWS).to_excel(writer, sheet_name="mine", index=False)
        pd.DataFrame(ROWS).to_excel(writer, sheet_name="other", index=False)
    found = data.load(path, text="title,body")
    assert found.fingerprint == wanted.fingerprint
    assert "rows.xlsx: sheet 'mine' is read, 1 more left aside" in found.notes
    streamed = [row for batch in data.iter_rows(path, text="title", batch_size=7) for row in batch]
    assert [row["others"]["id"] for row in streamed] == list(range(40))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"mixwell\[excel\]"):
        data.load(path, text="title")


def test_joined_texts(wanted: data.TextData) -> None:
    texts = {row["row_id"]: row["text"] for table in wanted.splits.values() for row in table.to_pylist()}
    for at, row in enumerate(ROWS, 1):
        both = row["title"] if row["body"] is None else f"{row['title']}\n{row['body']}"
        assert texts[f"train:{at}"] == both


def test_joined_texts_in_prediction() -> None:
    rows = frames()["pandas"]
    (batch,) = data.iter_rows(rows, known={"text": "title,body"})
    assert batch[1]["text"] == "title 1\nsome words 1"
    assert batch[1]["others"] == {"label": "b", "id": 1}
    (batch,) = data.iter_rows(rows.drop(columns="body"), known={"text": "title,body"})  # found anew
    assert batch[1]["text"] == "title 1"
    empty = rows.assign(title=None)
    with pytest.raises(DataError, match="'title,body' is empty or NaN in rows 1, 6"):
        list(data.iter_rows(empty, text="title, body"))


def test_a_comma_in_a_name_is_no_join() -> None:
    named = [{"title, or body": f"text {at}", "label": "ab"[at % 2]} for at in range(30)]
    import pandas as pd

    assert data.load(pd.DataFrame(named), text="title, or body").train["text"][0].as_py().startswith("text")


def test_what_cannot_be_read() -> None:
    import pandas as pd

    rows = pd.DataFrame(ROWS)
    with pytest.raises(DataError, match=r"no column 'bdy' for text \(did you mean 'body'"):
        data.load(rows, text="title,bdy")
    with pytest.raises(OptionError, match="different columns"):
        data.load(rows, text="title,label", label="label")
    with pytest.raises(DataError, match="type int cannot be read"):
        data.load(3)
    with pytest.raises(DataError, match="more than once"):
        data.load(pd.concat([rows, rows], axis=1), text="title")
    with pytest.raises(DataError, match="several types"):
        data.load(pd.DataFrame({"text": ["a", 1, "b"], "label": [1, 2, 1]}))
