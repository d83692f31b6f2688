"""The papers' experiments as data: one TOML file a paper, read and checked by `mixwell.papers.protocols`."""
