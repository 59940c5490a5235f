"""Reports: each renders a `pytest_gpuleak.findings.RunReport`; none computes or reads memory."""
