"""What `normscope bench` runs: our solvers and what one would use instead, interleaved in one process."""
