"""The training benchmark: three networks, one rank's run, what a run's figures are."""
