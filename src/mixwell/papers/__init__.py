"""The papers' experiments as data: one TOML file per paper, checked by `reading` and listed by `protocols`."""
