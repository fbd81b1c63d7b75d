"""Routes: the ways in which the fits of a call get their results, one file each."""
