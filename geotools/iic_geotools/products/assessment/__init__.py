"""Accuracy assessment: samples drawn from a map, and accuracy and areas estimated from them."""
