"""Principal components and singular vectors, from few passes over the rows."""
