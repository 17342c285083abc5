"""The sources of subjects: files, packages, model zoos, exported programs."""
