"""plots/check_docs.py: a sound set of documents passes, and each kind of fault is found at its line; so are faults planted in the real ones."""
from need import REPOSITORY

import contextlib
import io
import pathlib
import shutil
import tempfile
import unittest

import check_docs
import documents

README = """# A title
Read [the page](docs/page.md), [its section](docs/page.md#two-words--and-code), [here](#a-title), [a folder](docs), [the net](https://example.org/nothing).
![a picture](docs/picture.svg) and [`int main()`](src/main.cu#L3), [`add(a, b)`](src/main.cu#L5-L6).
`[not a link](nowhere.md)`

```sh
make step04 && ./step04 --seqlen 64
```

It prints:

```
step04 on 64 tokens, 1.1 MB, 3.25 ms (2 threads)
...
error 1.5e-07
```

```sh
./step04 --fail   # exit code 3
```

```console
$ ./step04 --seqlen 128 --device gpu
$ python3 src/tool.py --flag 1
```
"""
PAGE = """# Page
## Two words / and `code`
Text about 3 MB and 64x64.

## Measured
step04 takes <!-- value:time.median_ms gpu=none method=step04 -->n/a<!-- /value --> ms.
The paper says 7.3 ms and 4.4 GB. <!-- typed: arXiv 2205.14135, Figure 2 -->
"""
SOURCE = "// one\n// two\nint main() {\n  // four\n  add(a,\n      b);\n}\n"
# Stands for a step: it knows --seqlen and --plan.
PROGRAM = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    --seqlen) n=$2; shift ;;
    --device) shift ;;
    --plan) exit 0 ;;
    --fail) echo "refused" >&2; exit 3 ;;
    *) echo "$1: unknown flag" >&2; exit 2 ;;
  esac
  shift
done
echo "step04 on $n tokens, 1.1 MB, 9 ms (16 threads)"
echo "more"
echo "error 2.1e-07"
"""


class Made(unittest.TestCase):
    """A repository of a few files."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name).resolve()
        for name, text in (("README.md", README), ("docs/page.md", PAGE), ("docs/picture.svg", "<svg/>"), ("src/main.cu", SOURCE), ("src/tool.py", ""), ("plots/tool.py", 'add_argument("--flag")'),
                           ("build/step04", PROGRAM), ("Makefile", "all:\n\ttrue\n")):
            self.write(name, text)
        (self.root / "build/step04").chmod(0o755)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(self, *flags):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
            check_docs.main(["--root", str(self.root), *flags])
        return end.exception.code, out.getvalue() + err.getvalue()

    def planted(self, name, was, now, line, what, *flags):
        """Changes a file; exactly one fault must be told, at that line, in these words. Changes it back."""
        path = self.root / name
        whole = path.read_text()
        self.assertEqual(whole.count(was), 1, was)
        path.write_text(whole.replace(was, now))
        with self.subTest(now=now):
            code, out = self.check(*flags)
            self.assertEqual((code, out.count("\n")), (1, 1), out)
            self.assertTrue(out.startswith(line + ": "), out)
            self.assertIn(what, out)
        path.write_text(whole)


class Faults(Made):
    def test_sound(self):
        self.assertEqual(self.check(), (0, ""))
        code, out = self.check("--verbose")
        self.assertEqual(code, 0)
        self.assertIn("2 blocks run, 2 other commands looked at", out)
        self.assertIn("2 documents, 0 faults", out)

    def test_links(self):
        for was, now, line, what in (("(docs/page.md)", "(docs/pages.md)", 2, "no such file"), ("page.md#two-words--and-code", "page.md#two-words-and-code", 2, "no such heading"),
                                     ("(#a-title)", "(#the-title)", 2, "no such heading"), ("docs/picture.svg", "docs/picture.png", 3, "no such file"), ("(docs)", "(../..)", 2, "no such file"),
                                     ("[`add(a, b)`](src/main.cu#L5-L6)", "[`add(a, b)`](src/main.cu#L5-L9)", 3, "no such line")):
            self.planted("README.md", was, now, f"README.md:{line}", what, "--only", "links")
        self.write("docs/alone.md", "# Alone\n")
        self.assertEqual(self.check("--only", "links"), (1, "docs/alone.md:1: no link leads here from README.md\n"))

    def test_code_anchors(self):
        for was, now, what in (("main.cu#L3)", "main.cu#L4)", "stands at line 3"), ("`int main()`", "`int main2()`", "no line there"), ("[`int main()`]", "[main]", "no code in backticks"),
                               ("main.cu#L5-L6", "main.cu#L6-L7", "stands at line 5")):
            self.planted("README.md", was, now, "README.md:3", what, "--only", "code")
        self.planted("README.md", "`[not a link](nowhere.md)`", "[`int\nmain()`](src/main.cu#L5)", "README.md:5", "stands at line 3", "--only", "code")

    def test_fix(self):
        self.write("src/main.cu", 8 * "// added\n" + SOURCE)  # the numbers grow by a digit, so the second link of the line moves too
        self.assertEqual(self.check("--only", "code")[0], 1)
        self.assertEqual(self.check("--only", "code", "--fix"), (0, ""))
        self.assertIn("[`int main()`](src/main.cu#L11), [`add(a, b)`](src/main.cu#L13-L14).", (self.root / "README.md").read_text())
        self.assertFalse(list(self.root.rglob("*.part")))
        self.write("src/main.cu", 8 * "//\n" + "int main() {\n//\n//\n//\nint main() {\nadd(a, b)\n")  # as near above as below
        code, out = self.check("--only", "code", "--fix")
        self.assertEqual((code, out.count("\n")), (1, 1), out)
        self.assertIn("it stands at lines 9 and 13: choose", out)

    def test_commands(self):
        for was, now, line, what in (("--seqlen 64\n", "--seqlens 64\n", 7, "exit code 2: --seqlens: unknown flag"), ("make step04 &&", "make step05 &&", 7, "make step05: not built"),
                                     ("make step04 &&", "make test &&", 7, "show it as console"), ("on 64 tokens", "on 65 tokens", 13, "does not print this line"), ("1.1 MB", "1.2 MB", 13, "does not print"),
                                     ("error 1.5e-07", "errors 1.5e-07", 15, "does not print"), ("# exit code 3", "# exit code 4", 19, "exit code 3: refused"), ("--fail   # exit code 3", "--fail", 19, "exit code 3"),
                                     ("./step04 --fail   # exit code 3", "true   # exit code 3", 19, "exit code 0"), ("make step04 &&", "false\n", 7, "exit code 1"),
                                     ("--seqlen 128", "--seq 128", 23, "--seq: unknown flag"), ("src/tool.py", "src/tools.py", 24, "there is no src/tools.py"), ("--flag 1", "--flags 1", 24, "--flags"),
                                     ("```console\n", 9 * "\n" + "```\n", 32, "a command in a plain block"), ("`[not a link](nowhere.md)`", "`./step04 --speed`", 4, "--speed: unknown flag"),
                                     ("`[not a link](nowhere.md)`", "\n    ./step04 --speed", 5, "--speed: unknown flag"), ("`[not a link](nowhere.md)`", "`make tee`", 4, "No rule to make target")):
            self.planted("README.md", was, now, f"README.md:{line}", what, "--only", "commands")
        (self.root / "build/step04").unlink()
        self.assertEqual(self.check()[0], 2, "without programs nothing has been checked")

    def test_what_is_stable(self):
        self.assertEqual(check_docs.stable("a  9.4 ms, 152 ms, 1.1 MB, 0.14 of it, 9.4e-08, 1e-06, 65536 elements"), "a (time), (time), 1.1 MB, (number) of it, (number), (number), 65536 elements")
        self.assertEqual(check_docs.missing_line(["b", "a"], "a\nb"), 1, "in order")

    def test_figures(self):
        self.planted("docs/page.md", ">n/a<", ">2.5<", "docs/page.md:6", "'2.5', the results give 'n/a'", "--only", "figures")

    def test_typed(self):
        self.planted("docs/page.md", " <!-- typed: arXiv 2205.14135, Figure 2 -->", "", "docs/page.md:7", "'7.3 ms' is typed", "--only", "typed")
        self.planted("docs/page.md", "typed: arXiv 2205.14135, Figure 2", "typed:", "docs/page.md:7", "without a reason", "--only", "typed")
        self.planted("docs/page.md", "Text about", "<!-- typed: why -->Text about", "docs/page.md:3", "allows nothing", "--only", "typed")
        for text, what in (("It runs at 4.24 TB/s.", "4.24 TB/s"), ("It is 1.6x faster.", "1.6x faster"), ("8 % of the time", "8 % of the time"), ("11 to 31 times as fast", "31 times as fast"), ("300 TFLOP/s", "300 TFLOP/s"),
                           ("| step | ms |\n|---|---|\n| a | `b` |\n| c | 12.5 |\n", "12.5")):
            self.planted("docs/page.md", "Text about 3 MB and 64x64.", text, f"docs/page.md:{3 + text.find(what) // 14 if text[0] == '|' else 3}", f"{what!r} is typed", "--only", "typed")
        self.planted("docs/page.md", "Text about", "It takes 2 ms, says `<!-- typed: me -->`. Text about", "docs/page.md:3", "'2 ms' is typed", "--only", "typed")
        for text in ("It moves 3 GB.", "It is 3.5x that."):  # under a heading that promises measurements even sizes and ratios
            self.planted("docs/page.md", "step04 takes <", text + "\n\nstep04 takes <", "docs/page.md:6", text.split()[2 if "3.5" not in text else 2], "--only", "typed")
        self.planted("docs/page.md", "Text about", "```\nNVIDIA: 3.1 ms\n```\nText about", "docs/page.md:4", "no output of the executor", "--only", "typed")

    def test_bad_arguments(self):
        shutil.rmtree(self.root / "docs")
        (self.root / "README.md").unlink()
        for flags in ((), ("--only", "spelling"), ("--nothing",)):
            code, out = self.check(*flags)
            self.assertEqual((code, out.count("\n")), (2, 1), out)
        self.write("README.md", "```sh\n./step04\n")
        self.assertEqual(self.check(), (1, "README.md:1: a code fence without its end\n"))


class RealDocuments(unittest.TestCase):
    """The documents of this repository, one fault of each kind planted in a copy."""

    def test_planted(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            shutil.copytree(REPOSITORY / "docs", root / "docs")
            for entry in REPOSITORY.iterdir():
                if entry.name == "README.md":
                    shutil.copy(entry, root)
                elif entry.name != "docs" and not entry.name.startswith((".", "build")):
                    (root / entry.name).symlink_to(entry)
            readme = root / "README.md"
            lines = readme.read_text().rstrip("\n").split("\n")
            faults = ("[a page](docs/nowhere.md)", "[a heading](docs/exactness.md#nowhere)", "[`load_tile`](steps/step04_online_softmax.cu#L1)", "It takes 3.5 ms.",
                      "<!-- value:tflops gpu=none method=step04 -->9<!-- /value -->")
            places = {}
            for fault in faults:
                lines += ["", fault]
                places[fault] = len(lines)
            readme.write_text("\n".join(lines) + "\n")
            found = io.StringIO()
            with contextlib.redirect_stdout(found), self.assertRaises(SystemExit):
                check_docs.main(["--root", str(root), "--only", "links", "code", "figures", "typed"])
            told = found.getvalue()
            for fault, line in places.items():
                self.assertIn(f"README.md:{line}: ", told, fault)


class Parts(unittest.TestCase):
    def test_blocks(self):
        document = documents.Document("x", "a\n```sh\none\n\ntwo\n```\n- item\n\n    of the item\n\ntext\n\n    indented\n\n    more\ntext `code`\n")
        self.assertEqual([(block.line, block.language, block.code) for block in document.blocks], [(3, "sh", ["one", "", "two"]), (13, None, ["indented", "", "more"])])
        self.assertEqual([document.prose[n] for n in (1, 2, 8, 12, 15)], ["", "", "    of the item", "", "text `code`"])

    def test_slugs(self):
        document = documents.Document("x", "# What \"exact\" means here\n## fp16 and bf16: what\n## Same\n## Same\n### S, P, dP and dS in the type\n```\n# code\n```\n")
        self.assertEqual(list(document.slugs()), ["what-exact-means-here", "fp16-and-bf16-what", "same", "same-1", "s-p-dp-and-ds-in-the-type"])

    def test_links(self):
        document = documents.Document("x", "see [over `two\nlines`](a.cu#L1) and\n[more](x)\n\n`a\n\nb` [o](p)")
        self.assertEqual([(link.line, link.target, link.span) for link in document.links()], [(2, "a.cu#L1", (8, 15)), (3, "x", (7, 8)), (7, "p", (7, 8))])
        document = documents.Document("x", "[a](b) `[c](d)` [![e](f)](g) [h `i[0]`](j#L1)\n<img src=\"k\">\n[l]: m\n")
        self.assertEqual([link.target for link in document.links()], ["b", "g", "f", "j#L1", "m", "k"])


if __name__ == "__main__":
    unittest.main()
