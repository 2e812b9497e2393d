"""Types of the results of experiments and benchmarks, one file for each: `normscope.load` finds them by entry point."""
