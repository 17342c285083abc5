"""Where subjects come from: files, packages, model zoos, exported programs."""
