"""What tests make for themselves: scenes, small models, and helpers that run next to them."""
