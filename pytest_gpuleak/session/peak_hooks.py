"""Share the device probes and a meter of peaks in a run, and measure without the leak check."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.session.fixture_hooks import FixtureHooks
from pytest_gpuleak.session.frameworks import shared_frameworks

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.model.findings import Finding

DEVICE_PROBES: pytest.StashKey[list[DeviceProbe]] = pytest.StashKey()
"""Key of the run's device probes in the stash of pytest's config."""

BUDGET_FINDING: pytest.StashKey[Finding] = pytest.StashKey()
"""Key in the item's stash of the finding on a budget that the test's last attempt has exceeded."""

_HOOKS = "gpuleak-peaks"

_METER: pytest.StashKey[PeakMeter] = pytest.StashKey()


def shared_probes(config: pytest.Config) -> list[DeviceProbe]:
    """Return the run's device probes: always the same list, stopped when the run ends."""
    probes = config.stash.get(DEVICE_PROBES, None)
    if probes is None:
        probes = config.stash[DEVICE_PROBES] = shared_frameworks(config).devices
        config.add_cleanup(partial(_stop, probes))
    return probes


def _stop(probes: Sequence[DeviceProbe]) -> None:
    for probe in probes:
        with suppress(Exception):  # each leaves its framework as it was found
            probe.stop()


def shared_meter(config: pytest.Config) -> PeakMeter:
    """Return the run's meter. The first call creates it and registers its hooks."""
    meter = config.stash.get(_METER, None)
    if meter is None:
        meter = config.stash[_METER] = PeakMeter(shared_probes(config), shared_frameworks(config).free_workspaces)
        config.pluginmanager.register(MeterHooks(meter), _HOOKS)
    return meter


def take_over_meter(config: pytest.Config, *, needed: bool) -> PeakMeter | None:
    """Return the meter, for a caller with hooks of its own; None without budgets, unless it reads peaks (`needed`)."""
    if not needed and _METER not in config.stash:
        return None
    meter = shared_meter(config)
    config.pluginmanager.unregister(name=_HOOKS)
    return meter


class MeterHooks(FixtureHooks):
    """Measure where the leak check, whose own hooks otherwise do it, is off."""

    def __init__(self, meter: PeakMeter) -> None:
        super().__init__([meter], lambda _: Policy(), str)
        self._meter = meter

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Begin to measure. Plugins that repeat tests make several attempts within one protocol."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        self._meter.begin()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """End the measurement with the teardown."""
        __tracebackhide__ = True
        try:
            return (yield)
        finally:
            self._meter.end()
