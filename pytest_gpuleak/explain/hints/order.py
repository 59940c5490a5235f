"""The hint of a finding: one or two sentences on the edit that frees what a holder keeps.

An inspector recognises one way to leak from a finding's plain data: kind, root, references, types and sizes. The first
answer wins, so `ORDER` goes from specific patterns to general ones. No hint is better than a wrong one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints import (
    caches,
    callables,
    graphs,
    hooks,
    jax,
    places,
    pytest_objects,
    runtime,
    tasks,
    values,
)
from pytest_gpuleak.explain.hints.trail import Trail

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.protocol import Inspector
    from pytest_gpuleak.model.findings import Finding

ORDER: Final[tuple[Inspector, ...]] = (
    # No memory: what to edit is the function that was traced.
    jax.leaked_tracer,
    # Something still runs, and frees its memory when it ends.
    tasks.running_thread,
    tasks.asyncio_task,
    tasks.coroutine,
    tasks.async_generator,
    tasks.generator,
    tasks.scheduled_call,
    tasks.finished_future,
    # An object that records its inputs: its type names the mistake.
    pytest_objects.kept_instance,
    pytest_objects.recorded_property,
    runtime.mock_calls,
    runtime.log_record,
    runtime.stored_traceback,
    runtime.exception_argument,
    runtime.context_variable,
    runtime.finalizer,
    runtime.at_exit,
    runtime.patch_not_stopped,
    runtime.signal_handler,
    runtime.profiler,
    hooks.hook_not_removed,
    hooks.ring_through_graph,
    # Before the caches of functions, which torch.compile and JAX have too.
    jax.kept_by_caches,
    caches.weak_key,
    caches.compile_cache,
    graphs.gradient_registry,
    graphs.captured_by_function,
    graphs.keras_state,
    graphs.kept_by_tape,
    caches.cached_method,
    caches.cached_arguments,
    # What the array is, wherever it is kept.
    values.optimizer_state,
    values.gradient,
    jax.jitted_closure,
    jax.kept_pullback,
    values.autograd_graph,
    values.not_evaluated,
    values.mapped_file,
    values.view_of_large_array,
    values.view_of_large_storage,
    # How it came to be kept.
    caches.cached_results,
    caches.cached_property,
    callables.mutable_default,
    callables.memo_in_closure,
    callables.closure,
    callables.bound_method,
    callables.partial,
    places.registered_class,
    # That a place keeps it.
    pytest_objects.session_object,
    pytest_objects.shared_fixture,
    places.made_in_setup,
    places.growing_container,
    places.class_attribute,
    places.module_global,
)


def hint_for(finding: Finding) -> str | None:
    """Return the hint for a finding; None where no pattern is recognised or no holder was searched."""
    if finding.holder is None:
        return None
    trail = Trail(finding, finding.holder)
    for inspect in ORDER:
        hint = inspect(trail)
        if hint is not None:
            return hint
    return None
