"""Take one test, or one function, through detect, settle, confirm and judge.

The engine may import `explain`, `adapters`, `heap` and `model`, and knows neither pytest nor a framework by name. A new
step goes into the folder of its stage: `detect`, `settle`, `confirm`, or `judge`, which is pure.
"""
