"""Define the keys of data between xdist's workers and the controller that two modules share."""

USAGE_ERROR_KEY = "gpu_leak_usage_error"
"""Key of a worker's usage error in its ``workeroutput``."""

UNCHECKED_BUDGETS_KEY = "gpu_leak_unchecked_budgets"
"""Key of the reasons why a worker could not check budgets, in its ``workeroutput``: one per budget."""
