"""Plain data and sums over it: findings, readings, evidence, records, policy.

It may import the standard library alone.
What two wings hand to each other is defined here.
"""
