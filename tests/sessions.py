"""What the tests of persistent sessions share: a manifest, state files, panes, agents."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import support

import persistent_sessions as program

NAME = "persistent-sessions"


def new_id(number: int) -> str:
    """Return a conversation id that a reader can tell apart by its number."""
    return f"{number:08x}-0000-4000-8000-000000000000"


def state() -> Path:
    return Path(os.environ["HOME"], ".local/state", NAME)


def claude_folder() -> Path:
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path(os.environ["HOME"], ".claude"))


def configure(**groups: dict[str, Any]) -> Path:
    """Write config.json; the network is not waited for unless the test says so."""
    groups = {"network": {"wait_s": 0}, **groups}
    path = Path(os.environ["HOME"], ".config", NAME, "config.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(groups))
    return path


def declare(*rows: str, **groups: dict[str, Any]) -> Path:
    """Write a plain manifest and a configuration that names it; make the rows' folders."""
    path = Path(os.environ["HOME"], "manifest.tsv")
    path.write_text("".join(f"{row}\n" for row in rows))
    configure(manifest={"file": str(path)}, **groups)
    for row in rows:
        fields = row.split("\t")
        if len(fields) > 1 and fields[1].startswith(os.environ["HOME"]):
            os.makedirs(fields[1], exist_ok=True)
    return path


def row(name: str, folder: str = "", issue: str = "-", pin: str = "-", user: str = "-") -> str:
    """Return a manifest row for a folder below the test's home."""
    return "\t".join((name, os.path.join(os.environ["HOME"], folder or name), issue, pin, user))


def pairs(name: str, kind: str) -> dict[str, str]:
    """Return a state file's key=value pairs, {} when it is not there."""
    path = state() / f"{name}.{kind}"
    words = path.read_text().split() if path.exists() else []
    return dict(word.split("=", 1) for word in words if "=" in word)


def head_id(name: str) -> str:
    """Return the newest conversation id filed for a session, "" for none."""
    path = state() / f"{name}.id"
    return path.read_text().split("\n")[0] if path.exists() else ""


def panes() -> dict[str, int]:
    """Return {session: pid of its first pane}."""
    done = support.run_tmux("list-panes", "-a", "-F", "#{session_name} #{pane_pid}")
    lines = [line.split(" ") for line in reversed(done.stdout.splitlines())]
    return {name: int(pid) for name, pid in lines}


def agent(name: str) -> int:
    """Return the pid of a session's claude as its supervisor recorded it, 0 for none."""
    return int(pairs(name, "run").get("claude", "0"))


def screen(name: str) -> str:
    return str(support.run_tmux("capture-pane", "-p", "-t", f"={name}:").stdout)


def type_line(name: str, text: str) -> None:
    """Type a line at a session's prompt once the prompt is there."""
    assert support.wait_until(lambda: "❯" in screen(name)), screen(name)
    support.run_tmux("send-keys", "-t", f"={name}:", "-l", text)
    support.run_tmux("send-keys", "-t", f"={name}:", "Enter")


def prompt(name: str, text: str) -> None:
    """Have a conversation on disk: type a prompt and wait for its answer."""
    type_line(name, text)
    assert support.wait_until(lambda: f"ANSWER to: {text}" in screen(name)), screen(name)


def transcript(session_id: str, folder: str = "somewhere", text: str = "") -> Path:
    """Write a conversation to disk."""
    path = claude_folder() / "projects" / folder / f"{session_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"type": "user", "sessionId": session_id, "message": {"content": "hello"}}
    path.write_text(text or json.dumps(record) + "\n")
    return path


def file_id(name: str, *ids: str) -> None:
    """File conversation ids for a session, as its hook would have."""
    state().mkdir(0o700, parents=True, exist_ok=True)
    (state() / f"{name}.id").write_text("".join(f"{i}\n" for i in ids))


def record(pid: int, session_id: str, **fields: Any) -> Path:
    """Write a session record of Claude's for a process."""
    path = claude_folder() / "sessions" / f"{pid}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {"pid": pid, "sessionId": session_id, "procStart": support.start_time(pid)}
    kind = {"kind": "interactive", "entrypoint": "cli", "cwd": os.environ["HOME"]}
    path.write_text(json.dumps({**known, **kind, **fields}))
    return path


def argv_log() -> Path:
    """Have the stand-in log how it is started, and return the log."""
    path = Path(os.environ["HOME"], "argv.jsonl")
    claude_folder().mkdir(parents=True, exist_ok=True)
    knobs = claude_folder() / "fake-claude.json"
    old = json.loads(knobs.read_text()) if knobs.exists() else {}
    knobs.write_text(json.dumps({**old, "argv_log": str(path)}))
    return path


def knob(**values: Any) -> None:
    """Set knobs of the stand-in for the sessions launched from now on."""
    claude_folder().mkdir(parents=True, exist_ok=True)
    path = claude_folder() / "fake-claude.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **values}))


def claudes() -> dict[int, list[str]]:
    """Return the arguments of this home's claudes that live at one moment; their forks are none."""
    binary = f"{os.environ['HOME']}/.local/bin/claude"
    found = {}
    for pid in support.pids_marked("HOME", os.environ["HOME"]):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            words = os.fsdecode(f.read()).split("\0")
            if binary in words[:3]:
                found[pid] = words[words.index(binary) + 1 :]
    parents = {pid: program.process_parents(pid)[:1] for pid in found if support.alive(pid)}
    return {pid: found[pid] for pid, above in parents.items() if not found.keys() & {*above}}


def doubled() -> list[str]:
    """Return the names that more than one live claude has at one moment."""
    key = "--remote-control"
    names = [words[words.index(key) + 1] for words in claudes().values() if key in words]
    return sorted({name for name in names if names.count(name) > 1})


def launches(log: Path) -> list[dict[str, Any]]:
    return support.read_log(log)


def ended(name: str) -> bool:
    """Tell whether a session's supervisor has gone."""
    return not support.alive(int(pairs(name, "run").get("pid", "0") or 0))


def listed(ps: Any) -> dict[str, dict[str, Any]]:
    """Return `list --json` by session name."""
    done = ps("list", "--json")
    return {r["name"]: r for r in json.loads(done.stdout)["sessions"]}


def conf(text: str) -> None:
    """Write the person's ~/.tmux.conf."""
    Path(os.environ["HOME"], ".tmux.conf").write_text(text)


def clone(rows: str) -> Path:
    """Make an upstream repository with a manifest and a clone of it; return the clone."""
    home = Path(os.environ["HOME"])
    upstream, work = home / "upstream", home / "clone"
    subprocess.run(["git", "init", "-q", str(upstream)], check=True)
    commit(upstream, rows)
    subprocess.run(["git", "clone", "-q", str(upstream), str(work)], check=True)
    configure(manifest={"clone": str(work)})
    return work


def commit(repository: Path, rows: str) -> None:
    (repository / f"{NAME}.tsv").write_text(rows)
    subprocess.run(["git", "-C", str(repository), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(repository), "commit", "-qm", "rows"], check=True)
