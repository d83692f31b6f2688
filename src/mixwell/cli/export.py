"""`mixwell export`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run folder, or the model folder in it.")],
    onnx: Annotated[
        str, typer.Option(help="The file to write, as in served/model.onnx; the tokenizer goes beside it.")
    ],
    int8: Annotated[bool, typer.Option("--int8", help="8-bit weights; what that changes is measured.")] = False,
    data: Annotated[
        str | None, typer.Option(help="Labelled rows to measure --int8 on. Default: the test rows of the run.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")] = False,
) -> None:
    """Write a trained model as ONNX, with calibrated probabilities, and compare it with PyTorch."""
    from mixwell.training.export import export_onnx

    done = export_onnx(run, onnx, int8=int8, data=data, trust_remote_code=trust_remote_code)
    print(f"{done.file}: the logits differ from PyTorch's by {done.difference:.1e} at most")
    if done.int8 is not None:
        about = done.int8
        print(
            f"int8: accuracy {about['accuracy_int8']:.4f} instead of {about['accuracy']:.4f} on {about['rows']} "
            f"{about['split']}, {about['agreement']:.1%} of the answers as before"
        )
    print(f'predict      mixwell predict {done.file.parent} "a text"')
