"""Programs that run on the host. Python 3.8 to newest, standard library only."""
