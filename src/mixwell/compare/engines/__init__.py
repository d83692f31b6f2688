"""Where the runs of a comparison are trained: in this process, in several, on a Ray cluster."""
