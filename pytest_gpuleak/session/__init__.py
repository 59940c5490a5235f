"""Connect the engine to pytest. Only `session`, `plugin` and `hookspecs` know pytest.

A new feature of a run is a file in `features`, a new option a row in `options`.
"""
