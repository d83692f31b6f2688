"""`python -m mixwell`, for torchrun and accelerate launch."""

from __future__ import annotations

from mixwell.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
