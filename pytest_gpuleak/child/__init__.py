"""The agent: a thread in a helper process of a test run, which tells what each test leaves there, and who holds it."""
