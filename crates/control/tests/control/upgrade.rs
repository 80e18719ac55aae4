//! A database of release 0.2.
