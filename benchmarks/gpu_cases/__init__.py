"""The cases of gpu.py. None of these modules needs a GPU to be imported."""
