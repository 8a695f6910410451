"""How good a map is: samples drawn from it, and what they say about accuracy and areas."""
