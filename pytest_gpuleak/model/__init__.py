"""Plain data that wings hand to each other: findings, readings, evidence, records, policy."""
