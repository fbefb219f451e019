"""The headless verbs, one file each."""
