"""The page of every host: the server, a report in one file, a notebook."""
