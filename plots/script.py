"""What the scripts share: a parser whose errors are one line with exit code 2, and files that are written whole or not at all."""
import argparse
import pathlib


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{message} (--help lists the flags)\n")


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def write_whole(path, text):
    path = pathlib.Path(path)
    if path.exists() and not path.is_file():  # /dev/null, a pipe: a rename would put a file in its place
        path.write_text(text)
        return
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
