# SPDX-License-Identifier: Apache-2.0
"""Declarations and statements as lines of text: dense, one thought a line, never too wide."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import wrap

from flash_attention_workbench.ladder.parse import CLASS, CONTROL, FUNCTION, SIMPLE, USING, Item
from flash_attention_workbench.ladder.tokens import (
    BLOCK,
    CLOSING,
    MARK,
    NAME,
    NONE,
    SPACE,
    STRING,
    Token,
    Tokens,
    after_templates,
    opening,
    text_of,
)

WIDTH, SHARED_WIDTH = 120, 118  # of a line, and of one that is shared
SHORT, SHORT_DECLARATION = 64, 40  # statements that share a line
MOST_ON_A_LINE = 4  # statements between braces
UNROLL = "UNROLL"
_INDENT, _COMMENT = "  ", "  //"
_BREAK_AFTER = {",", "(", "&&", "||", "=", "+", "|", "?"}
_BREAK_BEFORE = {":", "?"}


class Layout:
    """Prints the declarations for which `keeps` holds; members of `apart` each have a line."""

    def __init__(self, keeps: Callable[[Item], bool], apart: Item) -> None:
        self.keeps, self.apart = keeps, apart

    def lines(self, item: Item, indent: str = "") -> list[str]:
        """A declaration or a statement with its comments."""
        above = paragraphs(item.lead, indent)
        one = self._one_line(item)
        if one is not None and len(indent + one) <= WIDTH:
            body, behind = [indent + one], item.trail or item.note
        else:
            body, behind = self._several(item, indent), item.trail
        if behind and len(body[-1]) + 2 + len(behind) > WIDTH:
            return [*above, indent + behind, *body]
        body[-1] += f"  {behind}" if behind else ""
        return [*above, *body]

    def members(self, items: list[Item], indent: str) -> list[str]:
        """What stands between braces."""
        lines: list[str] = []
        before: Item | None = None
        for item in self._joined([item for item in items if self.keeps(item)]):
            here = self.lines(item, indent)
            if item.word == "else" and lines[-1] == indent + "}":
                here[0] = f"{lines.pop()} {here[0].strip()}"
            self.add(lines, here, before, item)
            before = item
        return lines

    def add(self, lines: list[str], here: list[str], before: Item | None, item: Item) -> None:
        """Lines of an item behind those of the one before it, which it may share a line with."""
        shares = before is not None and len(here) == 1 and self._share(before, item)
        if shares and len(joined := f"{lines[-1]} {here[0].strip()}") <= SHARED_WIDTH:
            lines[-1] = joined
        else:
            lines += here

    def _share(self, before: Item, item: Item) -> bool:
        if item.lead or before.trail or not _is_short(before) or item.owner is self.apart:
            return False
        if item.kind == CONTROL:  # and nothing comes after it
            return before.kind == SIMPLE and item.word != "else"
        return before.kind == item.kind and _is_short(item)

    def _joined(self, items: list[Item]) -> list[Item]:
        """Constants of one type, one after the other, become one declaration."""
        joined: list[Item] = []
        for item in items:
            if joined and (name := _same_type(joined[-1], item)):
                head = [*joined[-1].head[:-1], Token(MARK, ","), *item.head[name:]]
                if len(text_of(head)) + len(_INDENT) <= SHARED_WIDTH:
                    before = joined[-1]
                    joined[-1] = Item(before.kind, head, lead=before.lead, names=before.names)
                    continue
            joined.append(item)
        return joined

    # one line

    def _one_line(self, item: Item) -> str | None:
        """All of it but its own comments, or None where that is too much for a line."""
        head = self._flat_head(item)
        if head is None or item.body is None:
            return head
        members = [member for member in item.body if self.keeps(member)]
        if item.kind == CLASS and len(members) > 1 and any(m.kind == FUNCTION for m in members):
            return None
        inner = self._inside(members)
        if inner is None:
            return None
        if item.kind == CONTROL and not item.braces:
            return f"{head} {inner}"
        body = f"{{ {inner} }}" if inner else "{}"
        return f"{head} {body}{text_of(item.tail)}"

    def _inside(self, items: list[Item] | tuple[Item, ...]) -> str | None:
        if len(items) > MOST_ON_A_LINE:
            return None
        texts = []
        for item in items:
            if item.lead or item.trail or item.note or (text := self._one_line(item)) is None:
                return None
            texts.append(text)
        return " ".join(texts)

    def _flat_head(self, item: Item) -> str | None:
        text = text_of(_head(item))
        for token in item.head:
            if token.kind == BLOCK:
                if (inner := self._inside(token.body)) is None or len(token.body) > 1:
                    return None
                text = text.replace("{}", f"{{ {inner} }}", 1)
        return text

    # several lines

    def _several(self, item: Item, indent: str) -> list[str]:
        """What needs more than one line, without the comments around it."""
        if item.body is None:
            return self._with_lambda(item, indent)
        if item.kind == CONTROL and not item.braces:
            return self._controlled(item, indent)
        head = fill(_head(item), indent, room=len(" {};"))
        inner = self.members(item.body, indent + _INDENT)
        if not inner and not item.note:
            return [*head[:-1], f"{head[-1]} {{}}{text_of(item.tail)}"]
        head[-1] += f" {{  {item.note}" if item.note else " {"
        if item.kind == CLASS or _COMMENT in inner[-1] or len(inner[-1]) + 2 > WIDTH:
            return [*head, *inner, f"{indent}}}{text_of(item.tail)}"]
        if (one := self._inside(item.body)) and len(indent + _INDENT + one) + 2 <= WIDTH:
            inner = [indent + _INDENT + one]
        return [*head, *inner[:-1], f"{inner[-1]} }}{text_of(item.tail)}"]

    def _controlled(self, item: Item, indent: str) -> list[str]:
        """A loop that holds nothing but a loop shares its line."""
        (inner,) = item.body or []
        head = fill(_head(item), indent)
        if inner.kind == CONTROL and not inner.lead:
            lines = self.lines(inner, indent)
            joined = f"{head[-1]} {lines[0].strip()}"
            if len(joined) <= WIDTH:
                return [*head[:-1], joined, *lines[1:]]
        return [*head, *self.lines(inner, indent + _INDENT)]

    def _with_lambda(self, item: Item, indent: str) -> list[str]:
        """A statement. Lambdas of one short statement stay in its lines if there is room, and the
        bodies of others stand on lines of their own."""
        flat = self._with_flat_lambdas(item.head)
        lines = fill(flat, indent)
        if all(token.kind != BLOCK for token in flat) and max(map(len, lines)) <= WIDTH:
            return lines
        lines, start = [], 0
        closed: list[Token] = []  # the end of the lambda before
        for at, token in enumerate(item.head):
            if token.kind == BLOCK:
                head = fill([*closed, *item.head[start:at]], indent, room=len(" {"))
                inner = (line for s in token.body for line in self.lines(s, indent + _INDENT))
                lines += [*head[:-1], f"{head[-1]} {{", *inner]
                start, closed = at + 1, [Token(MARK, "}")]
        return [*lines, *fill([*closed, *item.head[start:]], indent)]

    def _with_flat_lambdas(self, head: Tokens) -> list[Token]:
        """The tokens, each lambda that can stand in a line as one of them."""
        result: list[Token] = []
        for token in head:
            inner = self._inside(token.body) if len(token.body) == 1 else None
            if inner is None:
                result.append(token)
                continue
            start = len(result) - 1
            if result[start].text == ")":
                start = opening(result, start) - 1
            start = opening(result, start)
            capture = result[start:]
            text = f"{text_of(capture)} {{ {inner} }}"
            result = [*result[:start], Token(NAME, text, capture[0].gap)]
        return result


def paragraphs(comments: list[str], indent: str = "") -> list[str]:
    """Comment lines, filled anew; what is indented or stands alone stays as it is."""
    lines: list[str] = []
    for comment in comments:
        goes_on = bool(lines) and all(_is_prose(line) for line in (lines[-1].strip(), comment))
        text = lines.pop().strip() + comment.removeprefix("//") if goes_on else comment
        lines += wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}// ")
    return lines


def _is_prose(comment: str) -> bool:
    return comment.startswith("// ") and comment[3] != " "


def fill(tokens: Tokens, indent: str, room: int = 0) -> list[str]:
    """The tokens on as many lines as they need, broken where the fewest brackets are open.

    The last line leaves room for as many characters more.
    """
    lines: list[str] = []
    rest, margin, width = list(tokens), indent, WIDTH - room
    if len(margin + text_of(rest)) > width and (start := after_templates(tokens)):
        lines.append(margin + text_of(rest[:start]))
        rest = rest[start:]
    while len(margin + text_of(rest)) > width and (at := _break(rest, width - len(margin))):
        lines.append(margin + text_of(rest[:at]))
        rest, margin = rest[at:], indent + 2 * _INDENT
    return [*lines, margin + text_of(rest)]


def rows(words: list[str]) -> list[str]:
    """Words that share lines."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > SHARED_WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _break(tokens: Tokens, room: int) -> int | None:
    """Where to go on in a new line: the last place of the best kind for which there is room."""
    best: tuple[int, int] | None = None
    depth = width = 0
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else token
        width = len(text_of(tokens[:index]))
        strong = token.text in _BREAK_BEFORE or before.kind == token.kind == STRING
        if width > room and best:
            break
        if index and token.gap != NONE and (strong or before.text in _BREAK_AFTER):
            rank = 2 * depth + (not strong)
            if best is None or rank <= best[0]:
                best = (rank, index)
        if token.kind == MARK:
            depth += (token.text in CLOSING) - (token.text in CLOSING.values())
            depth += ((token.text == "<") - (token.text == ">")) * (token.gap == NONE)
    return best[1] if best else None


def _head(item: Item) -> list[Token]:
    """The head as it is printed: every class is a struct, and its loops say that they unroll."""
    if item.kind == CLASS:
        start = after_templates(item.head)
        key = Token(NAME, item.head[start].text.replace("class", "struct"), item.head[start].gap)
        return [*item.head[:start], key, *item.head[start + 1 :]]
    if not item.pragmas:
        return item.head
    says = item.pragmas[0].removeprefix("#pragma ")
    word = UNROLL if says == "unroll" else f'_Pragma("{says}")'
    first = item.head[0]
    return [Token(NAME, word), Token(first.kind, first.text, SPACE), *item.head[1:]]


def _is_short(item: Item) -> bool:
    """A field, a constant or an alias, or a statement as short as a call."""
    if item.kind == SIMPLE:
        declares = len(item.head) > 1 and item.head[0].kind == item.head[1].kind == NAME
        return len(text_of(item.head)) <= (SHORT_DECLARATION if declares else SHORT)
    return item.is_field or item.kind == USING


def _same_type(before: Item, item: Item) -> int | None:
    """Where the name of a constant stands that can share the declaration before it."""
    if before.kind != item.kind or item.lead or item.trail or before.trail:
        return None
    if any(token.kind == BLOCK or token.text == "auto" for token in (*before.head, *item.head)):
        return None
    words, shared = ([token.text for token in of.head] for of in (item, before))
    for start in (["static", "constexpr"], ["const"], ["constexpr"]):
        name = len(start) + 1
        if words[: len(start)] == start and words[:name] == shared[:name]:
            return name if words[name + 1] == shared[name + 1] == "=" else None
    return None
