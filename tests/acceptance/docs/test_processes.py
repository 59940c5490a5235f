"""The fixtures of docs/processes.md start what they say, and its growth is told."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import blocks_of

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytest.importorskip("psutil")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

EXAMPLES = blocks_of("processes.md", "example")

APP = """
    KEPT = []

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        if scope["path"] == "/keep":
            KEPT.append(bytearray(b"x" * (8 << 20)))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
"""
OF_UVICORN = """
    @pytest.mark.parametrize("number", range(3))
    def test_first(server, number):
        assert urllib.request.urlopen(f"{server}/health").read() == b"ok"

    @pytest.mark.parametrize("number", range(8))
    def test_keeps(server, number):
        assert urllib.request.urlopen(f"{server}/keep").read() == b"ok"
"""
VLLM = """
    import multiprocessing

    def run_engine_core(requests, answers):
        kept = []
        for prompt in iter(requests.get, None):
            kept.append(bytearray(b"x" * (8 << 20)))
            answers.put(prompt.upper())

    class LLM:
        def __init__(self, model, *, enforce_eager, gpu_memory_utilization):
            spawn = multiprocessing.get_context("spawn")
            self.requests, self.answers = spawn.Queue(), spawn.Queue()
            pair = (self.requests, self.answers)
            self.core = spawn.Process(target=run_engine_core, args=pair, name="EngineCore", daemon=True)
            self.core.start()

        def generate(self, prompt):
            self.requests.put(prompt)
            return self.answers.get()

        def __del__(self):
            self.requests.put(None)
            self.core.join()
"""
OF_VLLM = """
    @pytest.mark.parametrize("number", range(8))
    def test_generates(llm, number):
        assert llm.generate("a") == "A"
"""


def drift_of(found: Run) -> list[str]:
    return [line for line in found.result.outlines if " MiB over " in line]


def suite(example: str, tests: str) -> str:
    return EXAMPLES[example][1] + textwrap.dedent(tests)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_app_behind_uvicorn(run: Runner, pytester: pytest.Pytester, workers: int) -> None:
    pytest.importorskip("uvicorn")
    pytester.makepyfile(app=APP)
    source = suite("uvicorn", OF_UVICORN)
    assert '"--workers", "1"' in source
    found = run(source.replace('"--workers", "1"', f'"--workers", "{workers}"'), apart=True)
    assert set(found.verdicts.values()) == {"clean"}
    lines = drift_of(found)
    assert 1 <= len(lines) <= workers  # requests may all go to one worker
    assert all(", fixture 'server'): " in line and "most of it in test_keeps" in line for line in lines)
    if workers == 1:
        assert lines[0].startswith("gpu-leak: uvicorn (pid ")


def test_an_engine_core_behind_a_queue(run: Runner, pytester: pytest.Pytester) -> None:
    package = pytester.mkpydir("vllm")
    (package / "__init__.py").write_text(textwrap.dedent(VLLM))
    (package / "distributed.py").write_text("def cleanup_dist_env_and_memory():\n    pass\n")
    found = run(suite("vllm", OF_VLLM), apart=True)
    assert set(found.verdicts.values()) == {"clean"}
    (line,) = drift_of(found)
    assert line.startswith("gpu-leak: EngineCore (pid ")
    assert ", fixture 'llm'): " in line
    assert "over 8 tests, most of it in test_generates (+" in line
