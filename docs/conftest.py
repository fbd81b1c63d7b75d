"""The examples of the pages are run; scripts and settings of the build are not."""

collect_ignore_glob = ["*.py", "_*", "auto_examples"]
