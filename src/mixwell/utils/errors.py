"""Errors that a user can put right.

Every message names the thing at fault (file, row, column, option, module) and says what to do.
The command line turns a `MixwellError` into one line and exit code 2; anything else is a defect of ours.
"""

from __future__ import annotations

import errno

# What the user can put right about a disk or a folder.
DISK_ERRORS = {
    errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOTDIR,
    errno.EISDIR, errno.EEXIST,
}  # fmt: skip


class MixwellError(Exception):
    """Base of all errors whose cause lies in how mixwell was used."""


class OptionError(MixwellError, ValueError):
    """An option or argument is unknown, out of range or does not go with another one."""


class AttachError(MixwellError, RuntimeError):
    """`attach` cannot be done here, or was done in the wrong order."""


class UnsupportedModelError(AttachError):
    """The points a method needs were not found in this model, or could not be proved to fire."""


class LabelsNotMixedError(MixwellError, RuntimeError):
    """A mixed forward reached backward without its labels being mixed too."""


class LossMismatchError(MixwellError, RuntimeError):
    """The model's own loss is not the one mixwell would mix."""


class BatchError(MixwellError, ValueError):
    """A batch cannot be mixed as asked: its shapes, masks or labels do not fit."""


class DataError(MixwellError, ValueError):
    """A data file, row, column or label is not usable."""


class RunError(MixwellError, RuntimeError):
    """A run folder, checkpoint or record is missing, corrupt, in use or of another version."""


class DivergedError(RunError):
    """Training ended in a loss that is no number; other settings may do better."""


def nearest(word: str, candidates: object) -> str:
    """Return ` (did you mean 'x'?)` for the closest candidate, or an empty string.

    Args:
        word: what the user wrote.
        candidates: an iterable of known names.
    """
    import difflib

    close = difflib.get_close_matches(word, [str(c) for c in candidates], n=1, cutoff=0.6)  # type: ignore[attr-defined]
    return f" (did you mean {close[0]!r}?)" if close else ""
