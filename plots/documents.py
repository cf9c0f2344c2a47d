"""Markdown documents taken apart: code blocks, prose, links, headings. Shared by the checks of plots/check_docs.py."""
import dataclasses
import re

FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*(\S*)\s*$")
INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
# [text](target) and ![text](target); the text may hold code, and a picture inside a link.
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\]|!\[[^\]]*\]\([^)]*\))*)\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[([^\]]+)\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
HTML_TARGET = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclasses.dataclass
class Block:
    """A code block. `language` is the fence's word ("" without one), None for a block that is indented by four spaces."""
    line: int  # of the first line of code
    language: str | None
    code: list


@dataclasses.dataclass
class Link:
    line: int
    text: str
    target: str
    span: tuple  # of the target, in its line (the text may have begun on an earlier one)


class Document:
    def __init__(self, name, text):
        """`name`: the path as the reader should see it."""
        self.name, self.text = name, text
        self.lines = text.split("\n")
        self.blocks, self.in_code = [], [False] * len(self.lines)
        self._find_blocks()
        # The prose: code blocks are blank lines, so that line numbers stay.
        self.prose = ["" if code else line for line, code in zip(self.lines, self.in_code)]

    def _find_blocks(self):
        fence, block, list_indent = None, None, 0
        for number, line in enumerate(self.lines, 1):
            match = FENCE.match(line)
            if fence is not None:
                self.in_code[number - 1] = True
                if match and match[1].startswith(fence) and not match[2]:
                    fence = block = None
                else:
                    block.code.append(line)
                continue
            if match:
                fence, block = match[1], Block(number + 1, match[2], [])
                self.blocks.append(block)
                self.in_code[number - 1] = True
                continue
            indented = line.startswith("    ") and line.strip()
            if block is not None and (indented or not line.strip()):  # an indented block goes on, over blank lines too
                if indented:
                    block.code += [""] * (number - block.line - len(block.code)) + [line[4:]]
                    self.in_code[number - 1] = True
                continue
            block = None
            before = self.lines[number - 2].strip() if number > 1 else ""
            if indented and not before and not list_indent:
                block = Block(number, None, [line[4:]])
                self.blocks.append(block)
                self.in_code[number - 1] = True
            elif re.match(r"^\s*(?:[-*+]|\d+\.)\s", line):
                list_indent = 1
            elif line.strip() and not line.startswith(" "):
                list_indent = 0
        if fence is not None:
            raise ValueError(f"{self.name}:{self.blocks[-1].line - 1}: a code fence without its end")

    def chunks(self):
        """(first line, text) of the stretches of prose between blank lines: what a link or inline code may run on in."""
        start, held = None, []
        for number, line in enumerate([*self.prose, ""], 1):
            if line.strip():
                start, held = start or number, [*held, line]
            elif held:
                yield start, "\n".join(held)
                start, held = None, []

    def inline_code(self):
        """(line, code)."""
        for start, text in self.chunks():
            yield from ((start + text.count("\n", 0, match.start()), " ".join(match[2].split())) for match in INLINE_CODE.finditer(text))

    def links(self):
        for start, text in self.chunks():
            code = [match.span() for match in INLINE_CODE.finditer(text)]
            found = []
            for match in LINK.finditer(text):
                if not any(begin <= match.start() < end for begin, end in code):
                    found.append((match[1], match[2], match.span(2)))
                    found += [(picture[1], picture[2], (match.start(1) + picture.start(2), match.start(1) + picture.end(2))) for picture in LINK.finditer(match[1])]
            for pattern, group in ((REFERENCE, 2), (HTML_TARGET, 1)):
                found += [("", match[group], match.span(group)) for match in pattern.finditer(text)]
            for words, target, (begin, end) in found:
                line_start = text.rfind("\n", 0, begin) + 1
                yield Link(start + text.count("\n", 0, begin), words, target, (begin - line_start, end - line_start))

    def headings(self):
        """(line, level, text)."""
        for number, line in enumerate(self.prose, 1):
            if match := HEADING.match(line):
                yield number, len(match[1]), match[2]

    def slugs(self):
        """The anchors of the headings, as GitHub makes them, and those of <a id="...">."""
        seen = {}
        for _, _, text in self.headings():
            text = LINK.sub(lambda link: link[1], COMMENT.sub("", text)).strip().lower()
            slug = "".join("-" if c == " " else c for c in text if c.isalnum() or c in " -_")
            seen[slug] = seen.get(slug, -1) + 1
            yield slug if seen[slug] == 0 else f"{slug}-{seen[slug]}"
        for match in re.finditer(r"<\w+[^>]*\b(?:id|name)=\"([^\"]+)\"", "\n".join(self.prose)):
            yield match[1]

    def paragraphs(self):
        """(first line, heading it stands under, text) of the prose, split at blank lines and code; comments and inline code are kept."""
        heading, start, held = "", None, []
        for number, line in enumerate([*self.prose, ""], 1):
            match = HEADING.match(line)
            if match or not line.strip():
                if held:
                    yield start, heading, "\n".join(held)
                start, held = None, []
                heading = match[2] if match else heading
            else:
                start, held = start or number, [*held, line]
