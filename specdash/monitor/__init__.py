"""Events, immutable state, the pure reducer, and the sources that feed it. Changes nothing on a host."""
