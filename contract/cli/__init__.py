"""The command line: expressions on files, explanations, a demo, calibration. It alone prints."""
