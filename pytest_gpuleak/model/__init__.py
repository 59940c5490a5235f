"""Plain data and sums over it, which wings hand to each other: findings, readings, evidence, records, policy.

It may import the standard library alone.
"""
