"""One test, or one function, through detect, settle, confirm and judge.

It may import `explain`, `adapters`, `heap` and `model`, and knows neither pytest nor a framework by name.
A new step goes where it takes place: `detect`, `settle`, `confirm`, or `judge`, which is pure.
"""
