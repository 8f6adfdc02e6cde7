//! Tests of the whole program, as one binary: it links once. Each module begins with what must hold.

mod agent;
mod apply;
mod cli;
mod cloud;
mod clouds;
mod examples;
mod gateway;
mod kills;
mod readme;
mod relay;
mod tidy;
