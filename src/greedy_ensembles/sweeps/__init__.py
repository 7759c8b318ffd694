"""Many runs at once: what a job is, where jobs run (here, in processes, on a Ray cluster), and `ge.sweep`."""
