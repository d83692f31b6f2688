"""The papers' experiments as data: one TOML file per paper, read and checked by `protocols`."""
