"""Plans of many runs and their state, which is a folder of ordinary run files. Needs neither torch nor Qt."""
