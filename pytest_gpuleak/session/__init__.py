"""pytest's side: hooks, options, xdist, re-runs, features, the end of a run.

It may import everything but `api` and `cli`, and is, with `plugin` and `hookspecs`, all that knows pytest.
A new feature of a run is a file in `features`, a new option a row in `config`.
"""
