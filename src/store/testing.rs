//! A store that misbehaves, for tests and for the crash harness.
