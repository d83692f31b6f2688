"""Train methods side by side and say which is better, and how sure that is.

    grid -> planning -> schedule (locks, records) -> engine, local, worker -> cell
    records -> summary (statistics) -> export, report

`run` is all of `mixwell compare`.
"""
