"""Train methods side by side and report which is better, and how certain that is.

    grid -> planning -> schedule (locks, records) -> engines -> cell
    records -> summary (stats) -> tables, report

`run.run` is all of `mixwell compare`. What users know as a run of a comparison, one method trained with one seed, is a
cell in code and in records: `spec.CellSpec` describes it, `cell.run_cell` trains it, `records.Record` is its result.
"""
