"""`python -m specdash` is `specdash`."""

from specdash.cli import main

raise SystemExit(main())
