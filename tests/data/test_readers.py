"""Reading files: formats, encodings, columns, labels, and what each fault says."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mixwell import data
from mixwell.utils.errors import DataError, OptionError

SMALL = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def rows_of(count: int = 30, classes: int = 3) -> list[tuple[str, str]]:
    return [(f"text number {at}", f"c{at % classes}") for at in range(count)]


def write_csv(path: Path, rows: Any, header: Any = ("text", "label"), **kwargs: Any) -> Path:
    encoding = kwargs.pop("encoding", "utf-8")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding=encoding, newline="") as stream:  # type: ignore[operator]
        writer = csv.writer(stream, **kwargs)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, records: Any) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as stream:  # type: ignore[operator]
        stream.writelines(json.dumps(record) + "\n" for record in records)
    return path


def everything(found: data.TextData) -> dict[str, tuple[str, Any]]:
    """Row id to (text, label name) over all splits."""
    out = {}
    for table in found.splits.values():
        for row in table.to_pylist():
            label = row["label"]
            if found.task == "single_label":
                label = found.labels[label]
            elif found.task == "multi_label":
                label = tuple(name for name, hot in zip(found.labels, label) if hot)
            out[row["row_id"]] = (row["text"], label)
    return out


def fault(*args: Any, kind: type[Exception] = DataError, **kwargs: Any) -> str:
    with pytest.raises(kind) as caught:
        data.load(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- formats


@pytest.mark.parametrize(
    "name", ["d.csv", "d.csv.gz", "d.tsv", "d.tsv.gz", "d.jsonl", "d.json", "d.jsonl.gz", "d.parquet"]
)
def test_every_format_gives_the_same_data(tmp_path: Path, name: str) -> None:
    rows = [(f'text, "quoted" {at} and é\nmore', label) for at, (_, label) in enumerate(rows_of())]
    path = tmp_path / name
    if ".csv" in name:
        write_csv(path, rows)
    elif ".tsv" in name:
        write_csv(path, rows, delimiter="\t")
    elif "json" in name:
        write_jsonl(path, [{"text": text, "label": label} for text, label in rows])
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": [r[0] for r in rows], "label": [r[1] for r in rows]}), path)
    found = data.load(path)
    assert everything(found) == {f"train:{at}": row for at, row in enumerate(rows, 1)}
    assert found.task == "single_label"
    assert found.labels == ("c0", "c1", "c2")
    reference = data.load(write_csv(tmp_path / "reference.csv", rows))
    assert found.fingerprint == reference.fingerprint


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_found(tmp_path: Path, delimiter: str) -> None:
    rows = [(f"one, two; three | {at}", label) for at, (_, label) in enumerate(rows_of())]
    found = data.load(write_csv(tmp_path / "d.csv", rows, delimiter=delimiter))
    assert everything(found)["train:1"] == rows[0]
    assert any("separated" in note for note in found.notes) == (delimiter != ",")


@pytest.mark.parametrize(
    ("encoding", "note"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("cp1252", "Windows-1252"),
    ],
)
def test_encodings(tmp_path: Path, encoding: str, note: str) -> None:
    rows = [(f"caf\u00e9 \u201c{at}\u201d", label) for at, (_, label) in enumerate(rows_of())]
    found = data.load(write_csv(tmp_path / "d.csv", rows, encoding=encoding))
    assert everything(found)["train:30"] == rows[29]
    assert found.columns == {"text": "text", "label": "label"}
    assert any(note in line for line in found.notes if "read as" in line) == bool(note)


def test_late_byte_decides_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    body = "".join(f"plain text {at},{at % 2}\n" for at in range(90000))
    path.write_bytes(b"text,label\n" + body.encode() + b"caf\xe9,1\n")
    assert len(path.read_bytes()) > 1 << 20
    rows = next(data.iter_rows(path, batch_size=100000))
    assert rows[-1]["text"] == "café"


def test_utf8_character_over_a_block_border(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_bytes(b"a" * ((1 << 20) - 1) + "é".encode() + b"\nb\n")
    rows = next(data.iter_rows(path))
    assert [len(row["text"]) for row in rows] == [1 << 20, 1]


def test_long_field(tmp_path: Path) -> None:
    rows = [("x" * 1_200_000 + str(at), label) for at, (_, label) in enumerate(rows_of(6, 2))]
    found = data.load(write_csv(tmp_path / "d.csv", rows))
    assert everything(found)["train:3"] == rows[2]


def test_tsv_with_stray_quotes_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "d.tsv"
    lines = [f'"open quote {at}\tc{at % 2}' if at % 3 else f'plain "{at}" \tc{at % 2}' for at in range(24)]
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    found = data.load(path)
    assert len(everything(found)) == 24
    assert everything(found)["train:2"][0] == '"open quote 1'
    assert any("quotes" in note for note in found.notes)


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("text,label\n\n" + "\n\n".join(f"{text},{label}" for text, label in rows_of(12)) + "\n\n\n")
    assert len(everything(data.load(path))) == 12


def test_index_column_without_a_name(tmp_path: Path) -> None:
    rows = [(at, *row) for at, row in enumerate(rows_of())]
    found = data.load(write_csv(tmp_path / "d.csv", rows, header=("", "text", "label")))
    assert found.columns == {"text": "text", "label": "label"}


texts = st.text(
    alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), min_size=1, max_size=30
).filter(lambda text: text.strip() and text not in ("nan", "NaN"))


@SMALL
@given(
    st.lists(texts, min_size=8, max_size=20),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_csv_round_trip(tmp_path: Path, found: list[str], delimiter: str, encoding: str) -> None:
    if delimiter == "\t":  # a text with tabs and line breaks may look like rows of its own; see CsvRows
        found = [text.replace("\t", " ").replace("\n", " ") for text in found]
        assume(all(text.strip() for text in found))
    rows = [(text, f"c{at % 2}") for at, text in enumerate(found)]
    path = write_csv(tmp_path / "d.csv", rows, delimiter=delimiter, encoding=encoding, quoting=csv.QUOTE_ALL)
    assert everything(data.load(path)) == {f"train:{at}": row for at, row in enumerate(rows, 1)}
    read = [row["text"] for batch in data.iter_rows(path, batch_size=3) for row in batch]
    assert read == found


@SMALL
@given(st.binary(max_size=200))
def test_any_bytes_load_or_raise_a_data_error(tmp_path: Path, content: bytes) -> None:
    for name in ("d.csv", "d.tsv", "d.jsonl", "d.parquet", "d.csv.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            data.load(path)
        assert name in str(caught.value)


# ---- folders, saved data sets, the hub


def test_folder_of_splits(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", rows_of(30))
    write_jsonl(tmp_path / "dev.jsonl.gz", [{"text": f"dev {at}", "label": f"c{at % 3}"} for at in range(6)])
    write_csv(tmp_path / "Test.tsv", [(f"test {at}", f"c{at % 3}") for at in range(9)], delimiter="\t")
    write_csv(tmp_path / "extra.csv", rows_of(3))
    (tmp_path / "README.md").write_text("hello")
    found = data.load(tmp_path)
    assert {name: table.num_rows for name, table in found.splits.items()} == {
        "train": 30,
        "validation": 6,
        "test": 9,
    }
    assert found.validation["row_id"][0].as_py() == "validation:1"
    assert any("extra.csv" in note for note in found.notes)


def test_folder_of_shards(tmp_path: Path) -> None:
    write_csv(tmp_path / "train-00000-of-00002.csv", rows_of(15))
    write_csv(tmp_path / "train-00001-of-00002.csv", [(f"more {at}", f"c{at % 3}") for at in range(15)])
    assert everything(data.load(tmp_path))["train:16"] == ("more 0", "c0")


def test_folder_faults(tmp_path: Path) -> None:
    assert "no data files" in fault(tmp_path)
    write_csv(tmp_path / "test.csv", rows_of())
    assert "no train file" in fault(tmp_path)
    write_csv(tmp_path / "train.csv", rows_of())
    write_csv(tmp_path / "train.tsv", rows_of(), delimiter="\t")
    assert "both train.csv and train.tsv" in fault(tmp_path)
    (tmp_path / "train.tsv").unlink()
    write_csv(tmp_path / "test.csv", rows_of(), header=("text", "labl"))
    message = fault(tmp_path)
    assert "test.csv" in message
    assert "did you mean 'labl'?" in message


def test_validation_and_test_files(tmp_path: Path) -> None:
    main = write_csv(tmp_path / "d.csv", rows_of())
    other = write_csv(tmp_path / "t.csv", [(f"other {at}", f"c{at % 3}") for at in range(6)])
    found = data.load(str(main), test=str(other), validation=0.5)
    assert found.test["row_id"].to_pylist() == [f"test:{at}" for at in range(1, 7)]
    assert (found.train.num_rows, found.validation.num_rows) == (15, 15)
    assert "no such file" in fault(main, test=tmp_path / "none.csv")


@pytest.mark.parametrize("whole", [True, False])
def test_saved_data_set(tmp_path: Path, whole: bool) -> None:
    import datasets

    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    made = {
        name: datasets.Dataset.from_dict(
            {"sentence": [f"{name} {at}" for at in range(20)], "label": [at % 2 for at in range(20)]},
            features,
        )
        for name in ("train", "validation")
    }
    made["test"] = datasets.Dataset.from_dict({"sentence": ["a", "b"], "label": [-1, -1]}, features)
    if whole:
        datasets.DatasetDict(made).save_to_disk(str(tmp_path / "s"))
    else:
        made["train"].save_to_disk(str(tmp_path / "s"))
    found = data.load(tmp_path / "s")
    assert found.labels == ("neg", "pos")
    assert everything(found)["train:2"] == ("train 1", "pos")
    assert any("none of its rows has a label" in note for note in found.notes) == whole
    (tmp_path / "s" / ("dataset_dict.json" if whole else "state.json")).write_text("{")
    assert "cannot be read" in fault(tmp_path / "s")


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def fake(name: str, config: str | None = None) -> Any:
        asked.append((name, config))
        made = datasets.Dataset.from_dict({"text": [t for t, _ in rows_of()], "label": [at % 2 for at in range(30)]})
        return datasets.DatasetDict({"train": made, "unsupervised": made})

    monkeypatch.setattr(datasets, "load_dataset", fake)
    found = data.load("owner/name:small")
    assert asked == [("owner/name", "small")]
    assert found.labels == ("0", "1")
    assert any("unsupervised" in note for note in found.notes)

    def fails(name: str, config: str | None = None) -> Any:
        raise ConnectionError(f"Couldn't reach {name!r} on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    message = fault("owner/name")
    assert "owner/name: no such file or folder" in message
    assert "Couldn't reach" in message


def test_parquet_class_names(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    made = datasets.Dataset.from_dict(
        {"text": [t for t, _ in rows_of()], "label": [at % 2 for at in range(30)]}, features
    )
    made.to_parquet(str(tmp_path / "d.parquet"))
    assert data.load(tmp_path / "d.parquet").labels == ("neg", "pos")


def test_sample_data() -> None:
    assert data.sample_folder() == Path(data.__file__).parent / "sample"
    found = data.load(data.sample_folder())
    assert found.columns == {"text": "text", "label": "label"}
    assert found.leaks == {"validation": 0, "test": 0}


def test_import_is_light() -> None:
    heavy = ("pyarrow", "datasets", "torch", "pandas", "numpy")
    code = f"import sys, mixwell.data; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# ---- columns


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (("id", "review", "Sentiment"), {"text": "review", "label": "Sentiment"}),
        (("intent", "x", "utterance"), {"text": "utterance", "label": "intent"}),
        (
            ("sentence1", "sentence2", "label"),
            {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
        ),
        (("question", "passage", "answer"), {"text": "question", "text_pair": "passage", "label": "answer"}),
        (
            ("premise", "hypothesis", "gold_label"),
            {"text": "premise", "text_pair": "hypothesis", "label": "gold_label"},
        ),
        (("label", "foo", "text"), {"text": "text", "label": "label"}),
    ],
)
def test_columns_by_name(tmp_path: Path, header: tuple[str, ...], expected: dict[str, str]) -> None:
    rows = [tuple(f"{name} value {at % 2}" for name in header) for at in range(20)]
    found = data.load(write_csv(tmp_path / "d.csv", rows, header=header))
    assert found.columns == expected
    assert any("columns found" in note for note in found.notes)


def test_columns_by_value(tmp_path: Path) -> None:
    rows = [(at, f"some words {at}", f"k{at % 2}") for at in range(20)]
    found = data.load(write_csv(tmp_path / "d.csv", rows, header=("nr", "foo", "bar")))
    assert found.columns == {"text": "foo", "label": "bar"}
    two = [(f"some words {at}", f"other words {at}", f"k{at % 2}") for at in range(20)]
    message = fault(write_csv(tmp_path / "d.csv", two, header=("foo", "baz", "bar")))
    assert "cannot tell the text column among 'foo', 'baz', 'bar'" in message
    found = data.load(tmp_path / "d.csv", text="baz", text_pair="foo")
    assert found.columns == {"text": "baz", "text_pair": "foo", "label": "bar"}


def test_named_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "d.csv", [(*row, "x") for row in rows_of()], header=("sentence1", "grade", "sentence2"))
    assert data.load(path, text="sentence1", label="grade").columns == {"text": "sentence1", "label": "grade"}
    message = fault(path, text="sentense1", label="grade")
    assert message == (
        f"{path}: no column 'sentense1' for text (did you mean 'sentence1'?); its columns are 'sentence1', 'grade', "
        "'sentence2'"
    )
    assert "different columns" in fault(path, text="grade", label="grade", kind=OptionError)


def test_relation_records(tmp_path: Path) -> None:
    def record(at: int) -> dict[str, Any]:
        return {
            "tokens": ["Ada", "Lovelace", "lived", "in", "London", str(at)],
            "head": {"name": "ada lovelace", "positions": [[0, 1]]},
            "tail": {"name": "london", "positions": [[4], [5]]},
            "label": f"P{at % 2}",
        }

    found = data.load(write_jsonl(tmp_path / "d.jsonl", map(record, range(10))))
    assert everything(found)["train:1"][0] == "[E1] Ada Lovelace [/E1] lived in [E2] London [/E2] 0"
    assert found.columns["head"] == "head"
    bad = record(0)
    bad["tail"] = {"positions": [[9]]}
    message = fault(write_jsonl(tmp_path / "d.jsonl", [*map(record, range(4)), bad]))
    assert "row 5" in message
    assert "'tail'" in message


def test_relation_text_forms() -> None:
    words = ["a", "b", "c", "d"]
    assert data.relation_text(words, ["b c", "Q1", [[1, 2]]], {"name": "C"}) == "a [E1] b [E2] c [/E2] [/E1] d"
    assert data.relation_text(words, {"pos": [1]}, {"pos": [1]}).count("[") == 4  # type: ignore[union-attr]
    for head in ({"name": "z"}, {}, None, {"positions": [[-1]]}):
        with pytest.raises(ValueError):
            data.relation_text(words, head, {"pos": [0]})


# ---- labels


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["10", "9", "2"], ("2", "9", "10")),
        (["-1", "1", "0"], ("-1", "0", "1")),
        (["True", "false", "TRUE"], ("false", "true")),
        (["b", "a", "10"], ("10", "a", "b")),
        (["01", "02", "10"], ("01", "02", "10")),
        ([" b", "b ", "a"], ("a", "b")),
        (["v1.0", "1.5", "2"], ("1.5", "2", "v1.0")),
    ],
)
def test_csv_label_types(tmp_path: Path, values: list[str], expected: tuple[str, ...]) -> None:
    rows = [(f"some text {at}", values[at % len(values)]) for at in range(24)]
    assert data.load(write_csv(tmp_path / "d.csv", rows)).labels == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10, 9, 2], ("2", "9", "10")),
        ([True, False], ("false", "true")),
        (["1.5", "2.5"], ("1.5", "2.5")),
        (["x", 1], ("1", "x")),
    ],
)
def test_json_label_types(tmp_path: Path, values: list[Any], expected: tuple[str, ...]) -> None:
    records = [{"text": f"t {at}", "label": values[at % len(values)]} for at in range(24)]
    assert data.load(write_jsonl(tmp_path / "d.jsonl", records)).labels == expected


def test_float_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "d.csv", [(f"text {at}", at % 3 + 0.5) for at in range(20)])
    message = fault(path)
    assert "row 1, column 'label': the label 0.5 is a float; use task 'regression'" in message
    assert "float" in fault(path, task="single_label")
    found = data.load(path, task="regression")
    assert found.labels == ()
    assert everything(found)["train:2"] == ("text 1", 1.5)
    assert str(found.train.schema.field("label").type) == "double"

    path = write_csv(tmp_path / "e.csv", [(f"text {at}", f"{at % 3}.0") for at in range(20)])
    assert "'single_label' to take these whole numbers as classes" in fault(path)
    assert data.load(path, task="single_label").labels == ("0", "1", "2")
    assert "no number" in fault(write_csv(tmp_path / "f.csv", [("a", "1"), ("b", "x")]), task="regression")
    assert "nothing to learn" in fault(write_csv(tmp_path / "f.csv", [("a", "1"), ("b", "1")]), task="regression")


def test_float_labels_in_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a b", "c d", "e f"] * 5, "label": [1.0, 2.0, 1.0] * 5}), tmp_path / "d.parquet")
    assert "whole numbers" in fault(tmp_path / "d.parquet")
    assert data.load(tmp_path / "d.parquet", task="single_label").labels == ("1", "2")


def test_multi_label(tmp_path: Path) -> None:
    sets = [["a"], ["b", "a"], [], ["c"]]
    rows = [(f"text {at}", sets[at % 4]) for at in range(80)]
    expected = {f"train:{at}": (text, tuple(sorted(labels))) for at, (text, labels) in enumerate(rows, 1)}
    listed = data.load(write_jsonl(tmp_path / "d.jsonl", [{"text": t, "labels": s} for t, s in rows]))
    cells = data.load(write_csv(tmp_path / "d.csv", [(t, json.dumps(s)) for t, s in rows]))
    barred = data.load(write_csv(tmp_path / "e.csv", [(t, "|".join(s) or "[]") for t, s in rows]), task="multi_label")
    semi = data.load(write_csv(tmp_path / "f.csv", [(t, "; ".join(s) or "[]") for t, s in rows]), task="multi_label")
    for found in (listed, cells, barred, semi):
        assert found.task == "multi_label"
        assert found.labels == ("a", "b", "c")
        assert everything(found) == expected
        assert str(found.train.schema.field("label").type) == "list<item: float>"
    assert listed.fingerprint == cells.fingerprint == barred.fingerprint == semi.fingerprint


def test_multi_label_faults(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    assert "repeats a label" in fault(write_jsonl(path, [{"text": "a", "label": [0, 1, 0]}] * 4))
    mixed = [{"text": "a", "label": ["x"]}, {"text": "b", "label": "y"}]
    assert "row 2, column 'label': one label where others are lists" in fault(write_jsonl(path, mixed))
    assert "task 'multi_label'" in fault(write_jsonl(path, mixed), task="single_label")
    nested = [{"text": "a", "label": [["x"]]}] * 3
    assert "row 1" in fault(write_jsonl(path, nested))


def test_mixed_label_types(tmp_path: Path) -> None:
    records = [{"text": "a", "label": 1}, {"text": "b", "label": True}, {"text": "c", "label": 0}]
    message = fault(write_jsonl(tmp_path / "d.jsonl", records))
    assert "row 2" in message
    assert "mix booleans and whole numbers" in message
    assert "type dict" in fault(write_jsonl(tmp_path / "d.jsonl", [{"text": "a", "label": {}}]), label="label")


# ---- faults


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["the file is empty"]),
        ("\n\n", ["no rows"]),
        ("text,label\n", ["no rows, only a header"]),
        ("text,label\na,x\n", ["only 1 row"]),
        ("text,label\na,x\nb,x\n", ["column 'label'", "all rows have the label 'x'"]),
        ("text,label\na,x\n,y\n  ,x\nNaN,x\nb,y\n", ["column 'text' is empty or NaN in rows 2, 3, 4"]),
        ("text,label\n" + ",x\n" * 8, ["in rows 1, 2, 3, 4, 5 and 3 more"]),
        ("text,label\na,x\nb,\nc,y\n", ["column 'label' has no label in row 2;"]),
        ("text,label\na,x\nb,y\0\n", ["line 3 has a NUL byte"]),
        (b"text,label\na,x\nb\x81,y\n", ["line 3 has byte 0x81", "save the file as UTF-8"]),
        (b"\xef\xbb\xbftext,label\na\xff,x\n", ["utf-8-sig", "byte order mark"]),
        (b"\xff\xfet\0e\0x", ["utf-16"]),
        ("text,label\na,x\nb,c,y\nd,y\n", ["row 2 (line 3) has 3 fields, expected 2"]),
        ('text,label\n"a\nb",x\nc\n', ["row 2 (line 4) has 1 fields, expected 2"]),
        ("text,label,text\na,x,b\n", ["column 'text' more than once"]),
        ('text,label\na,x\n"b,y\nc,x\n', ["row 2 (line 3) is badly quoted"]),
        ('text,label\na,x\n"b" c,y\n', ["row 2 (line 3) is badly quoted"]),
        ("text,label\na,x\nb,x\nc,y\n", ["class 'y' has one example", "add examples"]),
        ("text,label\na,x\nb,x\nc,y\nd,y\n", ["too few to cut"]),
    ],
)
def test_csv_faults(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    path = put(tmp_path / "d.csv", content)
    message = fault(path)
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ('{"text": "a", "label": "x"}\n\n{"text": \n', "line 3 is not valid JSON"),
        ('{"text": "a", "label": "x"}\n[1]\n', "line 2 is a JSON array, expected an object"),
        ('[\n{"text": "a", "label": "x"},\n[1]]\n', "record 2 is a JSON array, expected an object"),
        ('[{"text": "a", "label": "x"} {"text": "b"}]', "no comma after record 1"),
        ('[{"text": "a", "label": "x"}, {"text": ', "record 2 of the JSON array cannot be read"),
        ('[{"text": "a", "label": "x"}, {"text": "b", "label": "y"}] {}', "there is more after the JSON array"),
        ('{"text": "a", "label": "x"}\n{"text": NaN, "label": "y"}\n', "empty or NaN in row 2"),
        ('{"text": "a", "label": "x"}\n{"text": "b"}\n', "no label in row 2"),
        ('{"text": "a", "label": "x"}\n{"text": ["b"], "label": "y"}\n', "row 2: column 'text' holds a list"),
        ('{"text": "a\\u0000", "label": "x"}\n', "row 1: column 'text' has a NUL character"),
        ('{"text": "a\\ud800", "label": "x"}\n', "row 1: not valid text"),
        ('{"text": "a", "label": "\\ud800"}\n', "row 1, column 'label': not valid text"),
        ("[" * 100000, "record 1 of the JSON array cannot be read"),
        ("{}\n{}\n", "cannot tell the text column"),
    ],
)
def test_json_faults(tmp_path: Path, content: str, part: str) -> None:
    path = put(tmp_path / "d.jsonl", content)
    message = fault(path)
    assert message.startswith(f"{path}: ")
    assert part in message


def test_missing_and_strange_files(tmp_path: Path) -> None:
    assert fault(tmp_path / "none.csv") == f"{tmp_path}/none.csv: no such file"
    assert "no such file" in fault(str(tmp_path / "none"))
    assert "unknown format" in fault(put(tmp_path / "d.xls", "x"))
    assert "not readable as Excel" in fault(put(tmp_path / "d.xlsx", "x"))
    packed = gzip.compress(("text,label\n" + "some text,x\n" * 1000).encode())
    assert "truncated" in fault(put(tmp_path / "d.csv.gz", packed[: len(packed) // 2]))
    assert "truncated or damaged" in fault(put(tmp_path / "e.csv.gz", "text,label\na,x\n"))
    assert "the file is empty" in fault(put(tmp_path / "f.csv.gz", gzip.compress(b"")))
    assert "not readable as Parquet" in fault(put(tmp_path / "d.parquet", b"PAR1 nonsense PAR1"))


def test_damaged_parquet_page(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"text": [f"text {at}" for at in range(500)], "label": [0, 1] * 250}), path)
    content = bytearray(path.read_bytes())
    content[10:400] = b"\xff" * 390
    assert str(path) in fault(put(path, bytes(content)))


def test_unseen_label(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", rows_of())
    write_csv(tmp_path / "test.csv", [("one", "c0"), ("two", "c9")])
    message = fault(tmp_path)
    assert "test.csv: row 2, column 'label': label 'c9' of test is not in train" in message


def test_options(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "d.csv", rows_of())
    assert "did you mean 'regression'" in fault(path, task="regresion", kind=OptionError)
    for value in (0, 1, 1.5, -0.1, True, float("nan")):
        assert "test must be" in fault(path, test=value, kind=OptionError)
    assert "below 1" in fault(path, test=0.6, validation=0.4, kind=OptionError)
    assert "split_seed" in fault(path, split_seed=1.5, kind=OptionError)
    write_csv(tmp_path / "train.csv", rows_of())
    write_csv(tmp_path / "test.csv", rows_of())
    assert "test data of its own" in fault(tmp_path, test=0.2, kind=OptionError)


# ---- streaming


def test_iter_rows(tmp_path: Path) -> None:
    rows = [(at, f"first {at}", f"second {at}") for at in range(10)]
    path = write_csv(tmp_path / "d.csv.gz", rows, header=("id", "sentence1", "sentence2"))
    batches = list(data.iter_rows(path, batch_size=4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert batches[1][0] == {
        "row": 5,
        "text": "first 4",
        "text_pair": "second 4",
        "record": {"id": "4", "sentence1": "first 4", "sentence2": "second 4"},
        "others": {"id": "4"},
    }
    assert "text_pair" not in next(data.iter_rows(path, text="sentence2"))[0]


def test_iter_rows_of_texts_and_lines(tmp_path: Path) -> None:
    assert [row["text"] for row in next(data.iter_rows(["a", "b\n"]))] == ["a", "b"]
    assert [row["text"] for row in next(data.iter_rows(io.StringIO("a\nb\n")))] == ["a", "b"]
    records = [{"question": "q", "extra": 1}]
    assert next(data.iter_rows(records))[0]["record"] == records[0]
    put(tmp_path / "d.csv", "name\nAda\nBob\n")
    assert [row["text"] for row in next(data.iter_rows(tmp_path / "d.csv"))] == ["Ada", "Bob"]
    put(tmp_path / "d.txt", "one\ntwo")
    assert [row["text"] for row in next(data.iter_rows(tmp_path / "d.txt"))] == ["one", "two"]


def test_iter_rows_is_lazy() -> None:
    def endless() -> Any:
        at = 0
        while True:
            yield f"text {at}"
            at += 1

    stream = data.iter_rows(endless(), batch_size=2)
    assert [row["row"] for _ in range(3) for row in next(stream)] == [1, 2, 3, 4, 5, 6]


def test_iter_rows_faults(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        data.iter_rows(tmp_path / "none.csv")
    with pytest.raises(DataError, match="no rows"):
        data.iter_rows([])
    with pytest.raises(OptionError, match="batch_size"):
        data.iter_rows(["a"], batch_size=0)
    with pytest.raises(DataError, match="row 2 is a int"):
        list(data.iter_rows(["a", 3]))  # type: ignore[list-item]
    stream = data.iter_rows(["a", "b", "", "d"], batch_size=2)
    assert len(next(stream)) == 2
    with pytest.raises(DataError, match="row 3"):
        next(stream)
    with pytest.raises(DataError, match="did you mean 'text'"):
        data.iter_rows(write_csv(tmp_path / "d.csv", rows_of()), text="txt")


def test_a_json_array_is_read_as_json_lines_are(tmp_path: Path) -> None:
    rows = [{"text": f"the text {at}, with ] and }} in it", "label": "ab"[at % 2]} for at in range(3000)]
    lines = put(tmp_path / "lines.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for indent in (None, 2):
        array = put(tmp_path / f"array{indent}.json", "\n " + json.dumps(rows, indent=indent) + "\n")
        assert data.load(array).source_fingerprint == data.load(lines).source_fingerprint
