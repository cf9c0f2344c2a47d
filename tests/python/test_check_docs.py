"""plots/documents/check_docs.py: a sound set of documents passes, and each kind of fault is found at its line; so are
faults planted in the real ones."""

from need import InFolder

import contextlib
import importlib.util
import io
import shutil
import types
import unittest
from unittest import mock

from plots.documents import check_docs, markdown

README = """# A title
Read [the page](docs/page.md), [its section](docs/page.md#two-words--and-code), [here](#a-title), [a folder](docs), \
[the net](https://example.org/nothing).
![a picture](docs/picture.svg) and [`int main()`](src/main.cu), [`add(a, b)`](src/main.cu).
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
step04 takes [n/a][1].
The paper says 7.3 ms and 4.4 GB. <!-- typed: arXiv 2205.14135, Figure 2 -->

[1]: results/none.json "time.median_ms method=step04"
"""
SOURCE = "// one\n// two\nint main() {\n  // four\n  add(a,\n      b);\n}\n"
NO_RESULTS = {"schema": "attention-results-2", "gpu": "none", "date": "", "commit": "", "versions": {}, "rows": []}
NO_RESULTS |= {"sweeps": []}
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


class Made(InFolder):
    """A repository of a few files."""

    def setUp(self):
        super().setUp()
        self.root = self.folder
        for name, text in (
            ("README.md", README),
            ("docs/page.md", PAGE),
            ("docs/picture.svg", "<svg/>"),
            ("docs/results/none.json", NO_RESULTS),
            ("src/main.cu", SOURCE),
            ("src/tool.py", ""),
            ("plots/tool.py", 'add_argument("--flag")'),
            ("build/step04", PROGRAM),
            ("Makefile", "all:\n\ttrue\n"),
        ):
            self.write(name, text)
        (self.root / "build/step04").chmod(0o755)

    def check(self, *flags):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                code = check_docs.main(["--root", str(self.root), *flags])
            except SystemExit as end:
                code = end.code
        return code, text.getvalue()

    def planted(self, only, name, faults):
        """Changes a file by each of [(was, now, line, what)] in turn; exactly one fault must be told by the check `only`,
        at that line, in these words."""
        for was, now, line, what in faults:
            self.plant(name, was, now, f"{name if name.endswith('.md') else 'README.md'}:{line}", what, "--only", only)

    def plant(self, name, was, now, line, what, *flags):
        path = self.root / name
        whole = path.read_text(encoding="utf-8")
        self.assertEqual(whole.count(was), 1, was)
        path.write_text(whole.replace(was, now), encoding="utf-8")
        with self.subTest(now=now):
            code, out = self.check(*flags)
            self.assertEqual((code, out.count("\n")), (1, 1), out)
            self.assertTrue(out.startswith(line + ": "), out)
            self.assertIn(what, out)
        path.write_text(whole, encoding="utf-8")


class Faults(Made):
    def test_sound(self):
        self.assertEqual(self.check(), (0, ""))
        code, out = self.check("--verbose")
        self.assertEqual(code, 0)
        self.assertIn("2 blocks run, 2 other commands looked at", out)
        self.assertIn("2 documents, 0 faults", out)

    def test_links(self):
        faults = (
            ("(docs/page.md)", "(docs/pages.md)", 2, "no such file"),
            ("page.md#two-words--and-code", "page.md#two-words-and-code", 2, "no such heading"),
            ("(#a-title)", "(#the-title)", 2, "no such heading"),
            ("docs/picture.svg", "docs/picture.png", 3, "no such file"),
            ("`int main()`](src/main.cu", "`int main()`](src/main.cu#L3", 3, "not its line"),
            ("(docs)", "(../..)", 2, "no such file"),
        )
        self.planted("links", "README.md", faults)
        self.write("docs/alone.md", "# Alone\n")
        self.assertEqual(self.check("--only", "links"), (1, "docs/alone.md:1: no link leads here from README.md\n"))

    def test_code(self):
        was = ("`int main()`", "`int\nmain2()`", 4, "`int main2()` does not stand in src/main.cu")
        self.planted("code", "README.md", [was])
        self.planted("code", "src/main.cu", [("b);", "c);", 3, "`add(a, b)` does not stand")])
        self.write("src/main.cu", 8 * "// added\n" + SOURCE)  # wherever it stands
        self.assertEqual(self.check("--only", "code"), (0, ""))

    def test_commands(self):
        faults = (
            ("--seqlen 64\n", "--seqlens 64\n", 7, "exit code 2: --seqlens: unknown flag"),
            ("make step04 &&", "make step05 &&", 7, "make step05: not built"),
            ("make step04 &&", "make test &&", 7, "show it as console"),
            ("on 64 tokens", "on 65 tokens", 13, "does not print this line"),
            ("1.1 MB", "1.2 MB", 13, "does not print"),
            ("error 1.5e-07", "errors 1.5e-07", 15, "does not print"),
            ("# exit code 3", "# exit code 4", 19, "exit code 3: refused"),
            ("--fail   # exit code 3", "--fail", 19, "exit code 3"),
            ("./step04 --fail   # exit code 3", "true   # exit code 3", 19, "exit code 0"),
            ("make step04 &&", "false\n", 7, "exit code 1"),
            ("--seqlen 128", "--seq 128", 23, "--seq: unknown flag"),
            ("src/tool.py", "src/tools.py", 24, "there is no src/tools.py"),
            ("--flag 1", "--flags 1", 24, "--flags"),
            ("```console\n", 9 * "\n" + "```\n", 32, "a command in a plain block"),
            ("`[not a link](nowhere.md)`", "`./step04 --speed`", 4, "--speed: unknown flag"),
            ("`[not a link](nowhere.md)`", "\n    ./step04 --speed", 5, "--speed: unknown flag"),
            ("`[not a link](nowhere.md)`", "`make tee`", 4, "no rule to make target"),
        )
        self.planted("commands", "README.md", faults)
        (self.root / "build/step04").unlink()
        self.assertEqual(self.check()[0], 2, "without programs nothing has been checked")

    def test_what_is_run(self):
        workshop = types.SimpleNamespace(folder=self.root)
        block = lambda language, *code: markdown.Block(1, language, list(code))
        loads, makes = block("sh", "./step04 --load tokens"), block("python", "np.save('q.npy', q)")
        for numpy in (None, "there"):
            with mock.patch("importlib.util.find_spec", lambda name: numpy):
                self.assertTrue(check_docs.runs(block("sh", "./step04"), workshop))
                self.assertFalse(check_docs.runs(block("console", "./step04"), workshop))
                self.assertFalse(check_docs.runs(block("python", "print(1)"), workshop))
                self.assertEqual(bool(check_docs.runs(makes, workshop)), numpy is not None)
                self.assertEqual(bool(check_docs.runs(loads, workshop)), numpy is not None)
        self.write("README.md", "```python\nprint(3)  # np.save(\n```\n\n```\n4\n```\n")
        if importlib.util.find_spec("numpy"):
            self.assertIn("README.md:6: `print(3)", self.check("--only", "commands")[1])

    def test_what_is_stable(self):
        self.assertEqual(
            check_docs.stable("a  9.4 ms, 152 ms, 1.1 MB, 0.14 of it, 9.4e-08, 1e-06, 65536 elements"),
            "a (time), (time), 1.1 MB, (number) of it, (number), (number), 65536 elements",
        )
        self.assertEqual(check_docs.missing_line(["b", "a"], "a\nb"), 1, "in order")

    def test_figures(self):
        self.planted("figures", "docs/page.md", [("[n/a]", "[2.5]", 6, "has '2.5', the results give 'n/a'")])

    def test_typed(self):
        text = "Text about 3 MB and 64x64."
        faults = (
            (" <!-- typed: arXiv 2205.14135, Figure 2 -->", "", 7, "'7.3 ms' is typed"),
            ("typed: arXiv 2205.14135, Figure 2", "typed:", 7, "is typed"),
            (text, "It runs at 4.24 TB/s.", 3, "'4.24 TB/s' is typed"),
            (text, "It is 1.6x faster.", 3, "'1.6x faster' is typed"),
            (text, "11 to 31 times as fast", 3, "'31 times as fast' is typed"),
            (text, "300 TFLOP/s", 3, "'300 TFLOP/s' is typed"),
            (text, "It takes 2 ms, says `<!-- typed: me -->`.", 3, "'2 ms' is typed"),
        )
        self.planted("typed", "docs/page.md", faults)

    def test_terms(self):
        self.write(
            "docs/attention.md",
            '## Glossary\n\n| <a id="sm"></a>SM | a part |\n| <a id="c"></a>core, heart | a part |\n'
            '| <a id="x"></a>X | 4X |\n',
        )
        self.write("docs/01-one.md", "[SMs](attention.md#sm), then SM. **X is many.**\n4X\nAll hearts: **core**\n")
        told = "link it to the glossary, or explain it in bold\n"
        self.assertEqual(self.check("--only", "terms"), (1, f'docs/01-one.md:3: the first "hearts": {told}'))
        self.write(
            "docs/01-one.md",
            "# X\n![SM](x.svg) [SM](page.md) `X` <!-- X --> MAX [a **core**](#x) heart\n```\nX\n```\nSMALL X-ray\n",
        )
        self.assertEqual(self.check("--only", "terms"), (0, ""), "none of these is a use")
        for use in (
            "4X",
            "Two SMs",
            "[SM](x.svg)",
            "[SM](attention.md)",
            "[SM](attention.md#x)",
            "an\nSM",
            "| heart |",
            "Core",
        ):
            self.write("docs/01-one.md", f"A page.\n{use} of [SMs](attention.md#sm), **X**, **core**.\n")
            self.assertEqual(self.check("--only", "terms")[0], 1, use)
        self.write("docs/page.md", "SM")
        self.write("docs/01-one.md", "")
        self.assertEqual(self.check("--only", "terms"), (0, ""), "a page outside the course")

    def test_bad_arguments(self):
        shutil.rmtree(self.root / "docs")
        (self.root / "README.md").unlink()
        for flags in ((), ("--only", "spelling"), ("--nothing",)):
            code, out = self.check(*flags)
            self.assertEqual((code, out.count("\n")), (2, 1), out)
        self.write("README.md", "```sh\n./step04\n")
        self.assertEqual(self.check(), (1, "README.md:1: a code fence without its end\n"))


class Parts(unittest.TestCase):
    def test_blocks(self):
        document = markdown.Document(
            "x",
            "a\n```sh\none\n\ntwo\n```\n- item\n\n    of the item\n\ntext\n\n    indented\n\n    more\ntext `code`\n",
        )
        self.assertEqual(
            [(block.line, block.language, block.code) for block in document.blocks],
            [(3, "sh", ["one", "", "two"]), (13, None, ["indented", "", "more"])],
        )
        self.assertEqual([document.prose[n] for n in (1, 2, 8, 12, 15)], ["", "", "    of the item", "", "text `code`"])

    def test_slugs(self):
        document = markdown.Document(
            "x",
            '# What "exact" means here\n## fp16 and bf16: what\n## Same\n## Same\n### S, P, dP and dS in the type\n'
            "```\n# code\n```\n",
        )
        self.assertEqual(
            list(document.slugs()),
            ["what-exact-means-here", "fp16-and-bf16-what", "same", "same-1", "s-p-dp-and-ds-in-the-type"],
        )

    def test_links(self):
        document = markdown.Document("x", "see [over `two\nlines`](a.cu) and\n[more](x)\n\n`a\n\nb` [o](p)")
        self.assertEqual([(link.line, link.target) for link in document.links()], [(2, "a.cu"), (3, "x"), (7, "p")])
        document = markdown.Document("x", '[a](b) `[c](d)` [![e](f)](g) [h `i[0]`](j)\n<img src="k">\n[l]: m "t"\n')
        self.assertEqual([link.target for link in document.links()], ["b", "g", "f", "j", "m", "k"])


if __name__ == "__main__":
    unittest.main()
