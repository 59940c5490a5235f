"""Connect the engine to pytest. A new feature of a run is a file in `features`, a new option a row in `options`."""
