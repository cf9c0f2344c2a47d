"""The scripts, a room each: measuring, tables, figures, documents. Needs the Python that README.md names."""

import sys

if sys.version_info < (3, 10):
    sys.exit("The scripts need Python 3.10 or newer; this is %d.%d (%s)" % (*sys.version_info[:2], sys.executable))
