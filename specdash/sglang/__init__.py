"""What is known about SGLang, as pure functions over bytes, text and JSON. Runs on hosts too: Python 3.8 syntax, standard library only."""
