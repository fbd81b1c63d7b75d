"""The Dask implementation of the engine: client, graphs, scattered objects, disk and events."""
