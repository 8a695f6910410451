"""Models: the card, model files, and how models are selected, validated and renamed."""
