"""The same calls and checks on the host, on an emulated GPU and on a GPU."""
