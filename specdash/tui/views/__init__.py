"""Pure views: state in, rows of spans out. No widget, no clock, no I/O."""
