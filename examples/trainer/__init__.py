"""A small training code base: points on spirals, a classifier, a loop with callbacks, retrieval by embedding."""
