"""The keys under which things travel between xdist's workers and the controller, where two modules need the same."""

USAGE_ERROR_KEY = "gpu_leak_usage_error"
"""Where the usage error of a worker travels in its ``workeroutput``."""

UNCHECKED_BUDGETS_KEY = "gpu_leak_unchecked_budgets"
"""Where the reasons travel for which a worker could not check budgets, in its ``workeroutput``: one each."""
