//! One test for each rule, and a crash at each request.
