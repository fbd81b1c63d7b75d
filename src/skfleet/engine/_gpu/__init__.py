"""Which estimators compute on a GPU, and how their rows and methods get to one."""
