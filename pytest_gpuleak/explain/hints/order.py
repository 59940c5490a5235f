"""The hint of a finding: the first answer of `ORDER`, specific patterns first. No hint is better than a wrong one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.explain.hints import (
    caches,
    callables,
    frameworks,
    hooks,
    places,
    pytest_objects,
    runtime,
    tasks,
    values,
)
from pytest_gpuleak.explain.hints.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import Finding

    Inspector = Callable[[Trail], str | None]
    """Recognises one way to leak from plain data, and returns its hint (at most `MAX_HINT_LENGTH`), or None in doubt."""

MAX_HINT_LENGTH: Final = 280
"""Longest hint, in characters, whatever the names in it."""

ORDER: Final[dict[str, Inspector]] = {
    # No memory: what to edit is the function that was traced.
    "GL801": frameworks.leaked_tracer,
    # Something still runs, and frees its memory when it ends.
    "GL401": tasks.running_thread,
    "GL402": tasks.asyncio_task,
    "GL403": tasks.coroutine,
    "GL404": tasks.async_generator,
    "GL405": tasks.generator,
    "GL406": tasks.scheduled_call,
    "GL407": tasks.finished_future,
    # An object that records its inputs: its type names the mistake.
    "GL601": pytest_objects.kept_instance,
    "GL602": pytest_objects.recorded_property,
    "GL501": runtime.mock_calls,
    "GL502": runtime.log_record,
    "GL503": runtime.stored_traceback,
    "GL504": runtime.exception_argument,
    "GL505": runtime.context_variable,
    "GL506": runtime.finalizer,
    "GL507": runtime.at_exit,
    "GL508": runtime.patch_not_stopped,
    "GL509": runtime.signal_handler,
    "GL510": runtime.profiler,
    "GL511": runtime.mode_not_left,
    "GL205": hooks.hook_not_removed,
    "GL206": hooks.ring_through_graph,
    "GL812": values.array_of_objects,
    # Before the caches of functions, which torch.compile and JAX have too.
    "GL802": frameworks.kept_by_caches,
    "GL105": caches.weak_key,
    "GL106": caches.compile_cache,
    "GL107": caches.script_constant,
    "GL805": frameworks.gradient_registry,
    "GL806": frameworks.captured_by_function,
    "GL807": frameworks.keras_state,
    "GL808": frameworks.kept_by_tape,
    "GL101": caches.cached_method,
    "GL102": caches.cached_arguments,
    # What the array is, wherever it is kept.
    "GL203": values.optimizer_state,
    "GL202": values.gradient,
    "GL803": frameworks.jitted_closure,
    "GL804": frameworks.kept_pullback,
    "GL201": values.autograd_graph,
    "GL809": values.not_evaluated,
    "GL810": values.mapped_file,
    "GL811": values.view_of_large_array,
    "GL204": values.view_of_large_storage,
    # How it came to be kept.
    "GL103": caches.cached_results,
    "GL104": caches.cached_property,
    "GL301": callables.mutable_default,
    "GL302": callables.memo_in_closure,
    "GL306": callables.exit_stack,
    "GL307": callables.wrapped_again,
    "GL303": callables.closure,
    "GL304": callables.bound_method,
    "GL305": callables.partial,
    "GL704": places.registered_class,
    # That a place keeps it.
    "GL603": pytest_objects.session_object,
    "GL604": pytest_objects.shared_fixture,
    "GL605": places.made_in_setup,
    "GL701": places.growing_container,
    "GL706": places.growing_chain,
    "GL707": places.growing_attributes,
    "GL702": places.class_attribute,
    "GL703": places.module_global,
}
"""Each inspector by its code, which has a page in `model.codes`."""


class Advice(NamedTuple):
    """A hint, and the code of the pattern that it is about."""

    code: str
    hint: str


def advice_for(finding: Finding, grows_at: int | None = None) -> Advice | None:
    """Return the hint for a finding; None where no pattern is recognised. Each run adds the reference at `grows_at`."""
    if finding.holder is None:
        return None
    trail = Trail(finding, finding.holder, grows_at)
    for code, inspect in ORDER.items():
        hint = inspect(trail)
        if hint is not None:
            return Advice(code, hint)
    return None
