// The work on several threads.
