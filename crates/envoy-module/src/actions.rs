//! Rate limit actions: compiled from Envoy's messages, and from a stream to descriptors.
