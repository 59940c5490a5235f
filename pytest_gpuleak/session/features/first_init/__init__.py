"""Tell who initialised a device first in this process."""
