"""An index over what the hosts' run folders remember."""
