"""Markdown documents taken apart: code blocks, prose, links, headings."""

import dataclasses
import re

FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*(\S*)\s*$")
INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
# [text](target) and ![text](target); the text may hold code, and a picture inside a link.
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\]|!\[[^\]]*\]\([^)]*\))*)\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[([^\]]+)\]:\s*<?(\S+?)>?(?:\s+\"[^\"]*\")?\s*$", re.MULTILINE)
HTML_TARGET = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclasses.dataclass
class Block:
    """A code block. `language` is the fence's word ("" without one), None for a block that is indented by four
    spaces."""

    line: int  # of the first line of code
    language: str | None
    code: list


@dataclasses.dataclass
class Link:
    line: int
    text: str
    target: str


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
        fence, block, list_indent = None, None, False
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
                list_indent = True
            elif line.strip() and not line.startswith(" "):
                list_indent = False
        if fence is not None:
            raise ValueError(f"{self.name}:{self.blocks[-1].line - 1}: a code fence without its end")

    def paragraphs(self):
        """(first line, text) of the stretches of prose between blank lines: what a link or inline code may run on
        in."""
        start, held = None, []
        for number, line in enumerate([*self.prose, ""], 1):
            if line.strip():
                start, held = start or number, [*held, line]
            elif held:
                yield start, "\n".join(held)
                start, held = None, []

    def inline_code(self):
        """(line, code)."""
        for start, text in self.paragraphs():
            for match in INLINE_CODE.finditer(text):
                yield start + text.count("\n", 0, match.start()), " ".join(match[2].split())

    def links(self):
        """Links of all kinds, pictures and the definitions of reference links among them."""
        for start, text in self.paragraphs():
            code = [match.span() for match in INLINE_CODE.finditer(text)]
            found = []
            for match in LINK.finditer(text):
                if not any(begin <= match.start() < end for begin, end in code):
                    found.append((match.start(2), match[1], match[2]))
                    pictures = LINK.finditer(match[1])
                    found += [(match.start(1) + picture.start(2), picture[1], picture[2]) for picture in pictures]
            for pattern, group in ((REFERENCE, 2), (HTML_TARGET, 1)):
                found += [(match.start(group), "", match[group]) for match in pattern.finditer(text)]
            for at, words, target in found:
                yield Link(start + text.count("\n", 0, at), words, target)

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
