"""Invariant Information Clustering: objective, networks, data, pairs, loop, evaluation, run folders."""
