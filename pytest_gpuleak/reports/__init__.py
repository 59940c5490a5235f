"""Reports: each renders a `pytest_gpuleak.records.RunReport`; none computes or reads memory."""
