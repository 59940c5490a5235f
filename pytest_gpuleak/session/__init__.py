"""Connect the engine to pytest: hooks, options, xdist, re-runs, features, the end of a run.

`session` may import everything but `api` and `cli`. Only it, `plugin` and `hookspecs` know pytest. A new feature of a
run is a file in `features`, a new option a row in `config`.
"""
