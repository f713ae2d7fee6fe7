//! Words for people: reads the command line, speaks on stdout and stderr, and ends with an exit code. The only place
//! that names clap and prints. Invariant: every failure is one line `windlass: what failed: why, what to try`.
