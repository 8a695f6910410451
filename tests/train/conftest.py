import torch
from hypothesis import settings

torch.set_num_threads(1)  # small two-thread jobs crawl on a loaded machine
settings.register_profile("untimed", deadline=None)  # no test asserts a time
settings.load_profile("untimed")
