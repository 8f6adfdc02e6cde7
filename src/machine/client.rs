//! The operator's side of the control protocol.
