"""How a host is reached: SSH or local, the agent, the supervisor, HTTP. Does not know what SGLang is."""
