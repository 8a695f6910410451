"""Learning from labels: pixels of scenes, and the images of the paper's comparison."""
