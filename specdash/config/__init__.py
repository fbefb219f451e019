"""What the operator wrote: settings, hosts, profiles, secrets by reference."""
