"""No text that a user meets has a word of our own machinery: messages, ``-h``, the docstrings of public names, the
front end, the documents outside docs/architecture, the examples. CHANGELOG.md is left out: it tells what was then."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest

import jupyter_dtrain

ROOT = Path(__file__).parents[1]
WORDS = re.compile(
    r"\b(steward\w*|watch|watches|agents?|leases?|spool\w*|drivers?|drives|driven|folds?|folded|folding|greetings?"
    r"|generations?|slot holders?|meets?|met|cures?|cured|heals?|healed|healing|resync\w*|observers?|observes?)\b",
    re.IGNORECASE,
)
# What is right with one of these words, and why.
ALLOWED = {
    r"NVIDIA drivers?|driver \d[\d.]+|the same driver on all hosts|than a driver knows": "NVIDIA calls it so",
    r"rpc agents?|the end of its agent|torch ends agents": "torch.distributed.rpc calls its object so",
    r"AI agents?": "a program that works for a person",
    r"ssh-agent": "OpenSSH's program has this name",
    r"ResizeObserver": "a class of the browser",
    r"Run\.spool is called": "the former name",
}
SQL = re.compile(r"\s*(SELECT|UPDATE|INSERT|CREATE|runs\.id)\b")
STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|`(?:[^`\\]|\\.)*`")


def found(where: str, text: str) -> list[str]:
    """The lines of ``text`` that have such a word where none is allowed."""
    allowed = re.compile("|".join(ALLOWED))
    return [f"{where}: {line.strip()}" for line in text.splitlines() if WORDS.search(allowed.sub("", line))]


def messages(path: Path) -> list[str]:
    """The strings of a module that are no docstrings and have a space, which names have not."""
    tree = ast.parse(path.read_text())
    bare = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in strings if id(node) not in bare and " " in node.value and not SQL.match(node.value)]


def test_messages():
    wrong = [
        line
        for path in sorted((ROOT / "jupyter_dtrain").rglob("*.py"))
        for text in messages(path)
        for line in found(str(path.relative_to(ROOT)), text)
    ]
    assert not wrong, "\n".join(wrong)


def test_public_docstrings():
    wrong: list[str] = []
    for name in jupyter_dtrain.__all__:
        public = getattr(jupyter_dtrain, name)
        wrong += found(name, inspect.getdoc(public) or "")
        if inspect.isclass(public):
            for member, value in vars(public).items():
                if not member.startswith("_"):
                    wrong += found(f"{name}.{member}", inspect.getdoc(value) or "")
    assert not wrong, "\n".join(wrong)


def test_front_end():
    sources = ROOT / "labextension"
    if not sources.exists():
        pytest.skip("needs a checkout")
    wrong = [
        line
        for path in sorted(sources.glob("src/**/*.ts*"))
        for text in STRING.findall(re.sub(r"^\s*(//|\*|/\*).*$", "", path.read_text(), flags=re.MULTILINE))
        if " " in text
        for line in found(str(path.relative_to(ROOT)), text)
    ]
    for path in sources.glob("schema/*.json"):
        wrong += found(str(path.relative_to(ROOT)), path.read_text())
    assert not wrong, "\n".join(wrong)


def test_documents_and_examples():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
    if not pages[0].exists():
        pytest.skip("needs a checkout")
    texts = {page: page.read_text() for page in pages if "architecture" not in page.relative_to(ROOT).as_posix()}
    for page in sorted((ROOT / "examples").glob("*.ipynb")):
        texts[page] = "\n".join("".join(cell["source"]) for cell in json.loads(page.read_text())["cells"])
    wrong = [line for page, text in texts.items() for line in found(str(page.relative_to(ROOT)), text)]
    assert not wrong, "\n".join(wrong)
