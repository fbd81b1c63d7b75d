"""Searches that train many candidates a little and the best of them longer."""
