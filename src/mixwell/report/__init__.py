"""Pictures and pages about runs."""
