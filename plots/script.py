"""What the scripts share: the command line, running programs, files in UTF-8 that are written whole, tables in text."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


class Stop(Exception):
    """The end of a program, with one line that says why and the exit code."""

    def __init__(self, line, code=2):
        super().__init__(line)
        self.code = code


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line with exit code 2."""

    def __init__(self, description, **options):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message):
        self.exit(2, f"{message} (--help lists the flags)\n")

    def writable(self, path):
        """Ends the program when `path` (None: nothing asked for) cannot be written."""
        if path and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
            self.error(f"{path}: cannot be written")


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def end_with(main):
    """Ends the program with main()'s exit code, or that of a Stop. A reader that has gone (`| head`) is no error, and
    neither is a terminal that does not know a letter."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Stop as stop:
        print(stop, file=sys.stderr)
        code = stop.code
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def call(command, seconds=None, **options):
    """(exit code, stdout, stderr) of a program; 124 when it took longer than `seconds`."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, **options
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"stopped: longer than {seconds} s"
    return done.returncode, done.stdout, done.stderr


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


def read_text(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def write_whole(path, content):
    """Writes text (in UTF-8) or bytes, whole or not at all; a full disk ends the program with one line. Two writers at
    once do not meet: the last one's file stays."""
    try:
        _write_whole(pathlib.Path(path), content)
    except OSError as error:
        raise Stop(f"{path}: cannot be written: {error.strerror}") from None


def _write_whole(path, content):
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # /dev/null, a pipe: a rename would put a file in its place
        path.write_bytes(content)
        return
    path = path.resolve()  # through a link to the file itself
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if path.exists():
            shutil.copymode(path, part)
        else:
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(part, 0o666 & ~mask)
        os.replace(part, path)
    finally:
        pathlib.Path(part).unlink(missing_ok=True)


def bytes_text(count):
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def table_text(lines, left=1, free=False):
    """A table for a terminal, of lines of cells, the heading first; `left` columns stand on the left. The last cell runs on in
    every line that is shorter than the heading, with `free` in all."""
    whole = len(lines[0])
    fits = [line if len(line) == whole and not free else line[:-1] for line in lines]
    widths = [max((len(line[n]) for line in fits if n < len(line)), default=0) for n in range(whole)]
    for line, fit in zip(lines, fits):
        cells = [
            text.ljust(width) if n < left else text.rjust(width) for n, (text, width) in enumerate(zip(fit, widths))
        ]
        yield "  ".join(cells + line[len(fit) :]).rstrip()
