"""Records that a run leaves behind: result files with machine, versions and commit, and the scores in them."""
