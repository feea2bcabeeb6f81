#!/usr/bin/python3 -IS
"""Give a new Claude Code session the open tasks of the one interrupted session before it.

    task-adopt                              the SessionStart hook; Claude's payload is on its stdin
    task-adopt status [--to ID]             which list is this session's, and what may be adopted
    task-adopt adopt --from ID [--to ID]    adopt by hand where the hook could only name several
    task-adopt install | uninstall          the hook and the task tools in Claude's settings

Every source but `clear` is treated alike.  Promised: no list is replaced or merged into, the source
is not changed, no session fails: the hook exits 0, its output is empty or one JSON object.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import stat
import sys
import time
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would make the start of every session half as slow again
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")
PROG, VERSION, BOM, TOOLS = "task-adopt", "1.0", b"\xef\xbb\xbf", "CLAUDE_CODE_ENABLE_TODO_TOOLS"
STATUSES = ("in_progress", "pending", "completed")  # in the order they are shown
YES, DOUBT, NO = "candidate", "unsure", "no"  # verdicts on an earlier session
STAGING, HIGH, BOOT_ID = ".task-adopt-", ".highwatermark", "/proc/sys/kernel/random/boot_id"
FILE_MAX, SPAN, BACK = 1 << 20, 1 << 18, 1 << 23  # bytes: of a task; read at ends of transcripts
CONTEXT_MAX, SHOWN_MAX = 4096, 40  # bytes of what the model is told, tasks in it
AT_FDCWD, RENAME_NOREPLACE = -100, 1  # <fcntl.h>, <linux/fs.h>
RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "armv7l": 382, "i686": 353}
RECENT = {"Last prompts of the user:": 4, "Answers of the user:": 4, "Last TodoWrite list:": 1}
Task = namedtuple("Task", "number subject description status open changed")  # changed: in ns
Sibling = namedtuple("Sibling", "name changed tasks high verdict why")  # high: last number freed


def dig(record: object, kind: type[T], *keys: str) -> T:
    """Return what `record` holds below `keys` if it is a `kind`, else an empty one."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, kind) else kind()


def is_component(text: str) -> bool:
    """Tell whether `text` is one plain word: safe in a folder and in a shell's command line."""
    return bool(re.fullmatch(r"[\w-][\w.-]*", text)) and len(text.encode()) <= 128


def parse_digits(raw: bytes) -> int:
    """Return a plain decimal number of at most 18 digits, 0 for anything else."""
    return int(raw) if raw.isdigit() and len(raw) <= 18 else 0


def parse_dict(raw: bytes) -> dict[str, object]:
    """Parse one UTF-8 JSON object; whatever else, also with a NaN in it, is an empty one."""
    try:
        return dig({"": json.loads(raw.decode(), parse_constant=int)}, dict, "")
    except (ValueError, RecursionError):
        return {}


def parse_task(name: str, raw: bytes, changed: int) -> Task | None:
    """Return the task in file `name`, None where Claude itself would not show it."""
    task = {"owner": "", "activeForm": "", "metadata": {}, **parse_dict(raw)}
    keys = ("subject", "description", "owner", "activeForm", "metadata", "blocks", "blockedBy")
    whole = all(map(isinstance, map(task.get, keys), (*[str] * 4, dict, list, list)))
    number, status = parse_digits(name[:-5].encode("ascii", "replace")), task.get("status")
    named = (name, task.get("id")) == (f"{number}.json", str(number)) and status in STATUSES
    ids = (i for key in ("blocks", "blockedBy") for i in dig(task, list, key))
    if not (number and named and whole and all(isinstance(i, str) for i in ids)):
        return None
    is_open = status != "completed" and not dig(task, dict, "metadata").get("_internal")
    return Task(number, task["subject"], task["description"], status, is_open, changed)


def parse_recent(record: object) -> Iterator[tuple[str, str]]:
    """Yield what a record of a transcript holds for RECENT, each with its heading."""
    prompts, decisions, lists = RECENT
    for question, answer in dig(record, dict, "toolUseResult", "answers").items():
        yield decisions, f"{question}: {answer}"
    typed, kind = dig(record, str, "message", "content"), dig(record, str, "type")
    odd = any(dig(record, bool, k) for k in ("isMeta", "isSidechain", "isCompactSummary"))
    for part in [] if odd else dig(record, list, "message", "content") or [{"text": typed}]:
        text, todos = dig(part, str, "text").strip(), dig(part, list, "input", "todos")
        if kind == "user" and text and not text.startswith("<"):
            yield prompts, text
        elif dig(part, str, "name") == "TodoWrite":
            items = (f"[{dig(t, str, 'status')}] {dig(t, str, 'content')}" for t in todos)
            yield lists, "; ".join(items)


def format_line(text: str, limit: int) -> str:
    """Return `text` on one line, without control characters, in at most `limit` bytes."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    raw = plain.encode()
    return plain if len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "…"


def format_list(header: str, lines: Sequence[str], total: int, room: int) -> str:
    """Return `header` and as many of `lines` as fit into `room` bytes, the others counted."""
    used, shown = len(f"{header}\n({total} more not shown)".encode()), 0
    while shown < len(lines) and used + len(lines[shown].encode()) < room:
        used += len(lines[shown].encode()) + 1
        shown += 1
    rest = [f"({total - shown} more not shown)"] if total > shown else []
    return "\n".join([header, *lines[:shown], *rest]) if lines else ""


def format_tasks(header: str, tasks: Sequence[Task], room: int) -> str:
    """Return the open ones of `tasks` under `header`, of many the newest; "" if none is open."""
    left, lines = [t for t in tasks if t.open], []
    many = len(left) > SHOWN_MAX
    left.sort(key=lambda t: (STATUSES.index(t.status), -t.changed if many else t.number))
    for t in left[:SHOWN_MAX]:
        texts = format_line(t.subject, 160), format_line(t.description, 240)
        lines.append(f"#{t.number} [{t.status}] {': '.join(filter(None, texts))}")
    return format_list(f"{PROG}: {len(left)} open tasks {header}", lines, len(left), room)


def format_hint(siblings: Sequence[Sibling], session: str, why: str, room: int) -> str:
    """Return which sessions may be meant and the commands that settle it; "" if there are none."""
    notes = [format_line(s.why or min(t for t in s.tasks if t.open)[1], 120) for s in siblings]
    lines = [f"{PROG} adopt --from {s.name} --to {session}  # {n}" for s, n in zip(siblings, notes)]
    header = f"{PROG}: an earlier session here left open tasks; not adopted: {why}. To adopt, run:"
    return format_list(header, lines, len(lines), room)


def claude_home(environ: Mapping[str, str]) -> str:
    """Return Claude's folder: CLAUDE_CONFIG_DIR, else ~/.claude."""
    return environ.get("CLAUDE_CONFIG_DIR") or os.path.join(environ.get("HOME", ""), ".claude")


def read_input() -> dict[str, object]:
    """Return it as soon as it is whole: its writer may be slow, or never close the pipe."""
    raw, end, payload = b"", time.monotonic() + 3, parse_dict(b"")
    while not payload and select.select([0], [], [], max(0, end - time.monotonic()))[0]:
        piece = os.read(0, SPAN)
        raw, payload = raw + piece, parse_dict((raw + piece).removeprefix(BOM))
        if not piece or len(raw) >= FILE_MAX:
            break
    return payload


def read_bytes(path: str, part: int = 0) -> tuple[bytes, int]:
    """Return bytes and time of a regular file, or its first (< 0: last) `part`; b"" for others."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as f:
            found = os.fstat(f.fileno())
            if not stat.S_ISREG(found.st_mode) or (not part and found.st_size > FILE_MAX):
                return b"", 0
            start = max(0, found.st_size + part) if part < 0 else 0
            return os.pread(f.fileno(), abs(part) or found.st_size + 1, start), found.st_mtime_ns
    except OSError:
        return b"", 0


def read_transcript(path: str, *parts: int, having: bytes = b"") -> Iterator[dict[str, object]]:
    """Yield the whole records in parts of a transcript, whatever a power cut did to others."""
    for part in parts:
        lines = read_bytes(path, part)[0].replace(b"\0", b"").split(b"\n")
        for line in (x for x in lines if having in x):
            halves = [line] if parse_dict(line) else line.replace(b"}{", b"}\n{").split(b"\n")
            yield from filter(None, map(parse_dict, halves))


def read_tasks(folder: str) -> list[Task]:
    """Return the valid tasks of a list.  Raises OSError where it cannot be read."""
    found = (parse_task(n, *read_bytes(os.path.join(folder, n))) for n in os.listdir(folder))
    return sorted(task for task in found if task)


def read_where(session: str) -> tuple[str, str, bool]:
    """Return the folder of all lists, the name of this session's, and whether others share it."""
    root = os.environ.get("CCR_TASKS_ROOT") or os.path.join(claude_home(os.environ), "tasks")
    if named := os.environ.get("CLAUDE_CODE_TASK_LIST_ID", ""):
        return root, re.sub(r"[^\w-]", "-", named, flags=re.ASCII), True
    team = os.environ.get("CLAUDE_CODE_EXPERIMENTAL_AGENT_TEAMS", "") in ("1", "true", "yes")
    team = team and os.environ.get("CLAUDE_CODE_ENTRYPOINT") != "sdk-cli"
    name = f"session-{session[:8]}" if team else session
    kept = read_bytes(f"{root}/{name}/.session-list")[0].decode("utf-8", "replace").strip()
    return root, kept if team and is_component(kept) else name, team  # kept: through /clear


def read_life(pid: int) -> str:
    """Return when a process began, "" if there is none but a zombie or thread, "?" if hidden."""
    try:
        os.getpgid(pid)
        with open(f"/proc/{pid}/stat", "rb") as f, open(f"/proc/{pid}/status", "rb") as g:
            fields, leader = f.read().rpartition(b")")[2].split(), f"\nTgid:\t{pid}\n".encode()
            return fields[19].decode() if leader in g.read() and fields[0] not in b"ZX" else ""
    except (OSError, OverflowError) as e:
        return "" if isinstance(e, (ProcessLookupError, OverflowError)) else "?"


def read_owners(session: str) -> tuple[dict[str, str], str]:
    """Return the conversations that are somebody's, each with the reason, and what is in doubt."""
    taken, doubt, free, boot = {}, "", set(), read_bytes(BOOT_ID, 64)[0].decode().strip()
    running, base = f"{claude_home(os.environ)}/sessions", os.environ.get("XDG_STATE_HOME", "")
    base = base if base[:1] == "/" else f"{os.environ.get('HOME', '')}/.local/state"
    listed: dict[str, set[str]] = {running: set(), (state := f"{base}/persistent-sessions"): set()}
    for place in listed:
        try:
            listed[place].update(os.listdir(place))
        except OSError as e:
            doubt = doubt if e.errno == errno.ENOENT else f"{place}: {e.strerror}"
    for name in (n for n in listed[running] if n.endswith(".json")):  # the others are keys
        record = parse_dict(read_bytes(os.path.join(running, name))[0])
        owner, pid = dig(record, str, "sessionId"), dig(record, int, "pid")
        pid = pid or parse_digits(os.fsencode(name[:-5]))
        life = read_life(pid) if pid > 0 else ""
        if life and not owner:  # half a record: Claude rewrites them in place
            doubt = f"{name!r} in {running} cannot be read"
        elif life and (life == "?" or str(record.get("procStart", life)) == life):
            taken[owner] = f"process {pid} still works on it"
        if owner == session:  # has taken the place of what that persistent session ran
            free.add(dig(record, str, "tmux").rpartition(":")[0])

    def read(file: str) -> str:
        nonlocal doubt
        raw, changed = read_bytes(f"{state}/{file}", 1 << 24) if file in listed[state] else (b"", 1)
        doubt = doubt if changed else f"'{file}' in {state} cannot be read"
        return raw.decode("utf-8-sig", "surrogateescape")

    lines = f"{read('registry.tsv')}\n{read('manifest.tsv')}".split("\n")
    rows = {line.split("\t")[0].strip() for line in lines}
    free |= {n[:-8] for n in listed[state] if n.endswith(".retired") and read(n).strip("\0\n")}
    for name in {n[:-3] for n in listed[state] if n.endswith(".id")} - free:
        run = dict(re.findall("(.*?)=(.*)", "" if name in rows else read(f"{name}.run")))
        life = read_life(parse_digits(os.fsencode(run.get("pid", ""))))
        if name in rows or (run.get("boot"), run.get("start") or "-") == (boot, life):
            taken["".join(read(f"{name}.id").split()[:1])] = f"session {name!r} brings it back"
    return taken, doubt


def read_origin(path: str) -> tuple[str, bool]:
    """Return the folder a conversation was started in, and whether it is a sub-agent's."""
    sub_agent = False
    for record in read_transcript(path, SPAN, -SPAN):
        sub_agent = sub_agent or dig(record, bool, "isSidechain")
        if dig(record, str, "cwd"):
            return dig(record, str, "cwd"), sub_agent
    return "", sub_agent


def read_heir(old: Sibling, others: Iterable[Sibling], folder: str) -> str:
    """Return the conversation newer than `old` that holds its tasks, finished them or was told."""
    subjects, mark = {(t.number, t.subject) for t in old.tasks}, f" from {old.name}:".encode()
    for new in (s for s in others if s.changed > old.changed):
        wiped = not new.tasks and new.high >= old.tasks[-1].number
        records = read_transcript(f"{folder}/{new.name}.jsonl", SPAN, having=mark)
        told = (dig(r, str, "attachment", "hookEvent") == "SessionStart" for r in records)
        if wiped or subjects <= {(t.number, t.subject) for t in new.tasks} or any(told):
            return str(new.name)
    return ""


def read_siblings(session: str, folder: str, cwd: str, root: str) -> list[Sibling]:
    """Return the other conversations in `folder` that have a list, judged, newest first."""
    found, unread, files = [], "", os.listdir(folder) if os.path.isdir(folder) else []
    stems = {n[:-6] for n in files if n.endswith(".jsonl") and not n.endswith(".live.jsonl")}
    for name in stems.intersection(os.listdir(root)) - {session}:
        path, plain = f"{root}/{name}", is_component(name) and not name.startswith("agent-")
        try:
            st = os.lstat(f"{folder}/{name}.jsonl")
            if plain and stat.S_ISREG(st.st_mode) and not os.path.islink(path):
                n = parse_digits(read_bytes(f"{path}/{HIGH}")[0].strip())
                found.append(Sibling(name, st.st_mtime_ns, read_tasks(path), n, NO, "no open task"))
        except OSError as e:
            unread = unread if e.errno in (errno.ENOENT, errno.ENOTDIR) else f"{name}: {e.strerror}"
    found.sort(key=lambda s: -s.changed)
    taken, doubt = read_owners(session) if found else ({}, "")
    head, before = read_bytes(f"{folder}/{session}.jsonl", SPAN)
    others = os.listdir(f"{folder}/..") if found and not before else []  # Claude appends there
    moved = any(os.path.lexists(f"{folder}/../{n}/{session}.jsonl") for n in others)
    for at, old in [(i, s) for i, s in enumerate(found) if any(t.open for t in s.tasks)]:
        place, sub_agent = read_origin(f"{folder}/{old.name}.jsonl")
        successor = read_heir(old, reversed(found[:at]), folder)
        verdicts = (  # the first that applies
            (old.name in taken, NO, taken.get(old.name)),
            (sub_agent, NO, "a sub-agent"),
            (place and os.path.realpath(place) != os.path.realpath(cwd), NO, f"started in {place}"),
            (successor, NO, f"{successor} went on with it"),
            (re.search(rb'"commandRun": ?{"command": ?"clear"', head), NO, "put away by /clear"),
            (moved, NO, "this session was begun in another folder"),
            (old.changed >= (before or time.time_ns()), DOUBT, "it is not older than this session"),
            (not place, DOUBT, "the folder it was started in is not known"),
            (doubt or unread, DOUBT, doubt or unread),
        )
        found[at] = Sibling(*old[:4], *next((v[1:] for v in verdicts if v[0]), (YES, "")))
    return found


def read_recent(path: str) -> str:
    """Return what was said last in a transcript of any size, newest first."""
    found: dict[str, list[str]] = {heading: [] for heading in RECENT}
    for line in reversed(read_bytes(path, -BACK)[0].split(b"\n")):
        if b'"user"' in line or b'"TodoWrite"' in line:
            for heading, text in parse_recent(parse_dict(line)):
                found[heading].append(f"- {format_line(text, 700 // RECENT[heading])}")
    parts = [format_list(key, lines[: RECENT[key]], 0, 780) for key, lines in found.items()]
    parts.append(f"The whole conversation: {format_line(path, 500)}" if any(parts) else "")
    return "\n".join(filter(None, parts))


def rename_noreplace(src: str, dst: str) -> None:
    """Rename to `dst` what is safe on the disk, unless that exists: syncfs(2), renameat2(2)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    args = AT_FDCWD, os.fsencode(src), AT_FDCWD, os.fsencode(dst), RENAME_NOREPLACE
    number, call = RENAMEAT2.get(os.uname().machine, -1), getattr(libc, "renameat2", None)
    failed = libc.syncfs(os.open(src, os.O_RDONLY))
    if failed or (call(*args) if call else libc.syscall(number, *args)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), dst)


def sync_rename(path: str) -> None:
    """Make a rename to `path` survive a power cut, where its file system can do that."""
    try:
        os.fsync(os.open(os.path.dirname(path), os.O_RDONLY))
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


def remove_staging(root: str, own: str = "") -> None:
    """Remove the staging folder `own`, and those of hooks that were killed."""
    for name in (n for n in os.listdir(root) if n.startswith(STAGING)):
        pid, _, start = name[len(STAGING) :].partition("-")
        if name == own or read_life(parse_digits(os.fsencode(pid))) not in (start, "?"):
            import shutil

            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def publish(root: str, source: str, name: str) -> None:
    """Make a whole copy of the list `source` visible as `name`; that it exists is an OSError."""
    own = f"{STAGING}{os.getpid()}-{read_life(os.getpid())}"
    os.umask(0o077)
    os.mkdir(f"{root}/{own}")
    try:
        for file in os.listdir(f"{root}/{source}"):
            raw, changed = read_bytes(f"{root}/{source}/{file}")
            if parse_task(file, raw, changed) or (file == HIGH and parse_digits(raw.strip())):
                with open(f"{root}/{own}/{file}", "xb") as f:
                    f.write(raw)
                os.utime(f"{root}/{own}/{file}", ns=(changed, changed))
        rename_noreplace(f"{root}/{own}", f"{root}/{name}")
    finally:  # a folder that was published has another name
        remove_staging(root, own)
    sync_rename(f"{root}/{name}")


def hook(payload: dict[str, object]) -> str:
    """Adopt where that is safe, and return what the model is to know about its tasks."""
    keys = ("session_id", "transcript_path", "cwd", "source", "hook_event_name")
    session, transcript, cwd, source, event = (dig(payload, str, key) for key in keys)
    if not is_component(session) or event not in ("", "SessionStart") or source == "clear":
        return ""
    recent = read_recent(transcript) if source == "compact" else ""
    (root, name, shared), room = read_where(session), CONTEXT_MAX - len(recent.encode()) - 2
    own, siblings, header = os.path.join(root, name), [], "are in your list"
    why = "it is not clear which one is continued here"
    if os.path.isdir(root):
        remove_staging(root)
        if not shared and not os.path.lexists(own):
            siblings = read_siblings(session, os.path.dirname(transcript), cwd, root)
    named = [s for s in siblings if s.verdict == YES]
    try:
        if len(named) == 1:
            publish(root, named[0].name, name)
            header = f"were recovered from {named[0].name}: they are in your list"
    except OSError as e:
        why = f"it cannot be published, {e.strerror}"
    told = format_hint(named or [s for s in siblings if s.verdict == DOUBT], session, why, room)
    if os.path.lexists(own):
        told = format_tasks(f"{header} (TaskList; Ctrl+T once updated):", read_tasks(own), room)
    return "\n\n".join(filter(None, (told, recent)))


def hook_command(other: bool = False) -> str:
    """Return what runs this hook: by import where that is prepared and quicker, else by path."""
    import shlex

    folder = os.path.join(os.environ.get("HOME", ""), ".local/lib/persistent-sessions")
    code = json.dumps(folder, ensure_ascii=False)  # Python's literals are written alike
    code = f'import sys;sys.path.append({code});import task_adopt as m;sys.exit(m.main())'
    quick = other != (os.path.realpath(f"{folder}/task_adopt.py") == os.path.realpath(__file__))
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    return shlex.join([python, "-IS", "-c", code] if quick else [os.path.abspath(__file__)])


def cmd_status(verb: str, source: str, target: str) -> str:
    """Show this session's list and what is thought of each earlier session of this folder."""
    home, (root, name, shared) = claude_home(os.environ), read_where(target or "(not in a session)")
    raw = read_bytes(os.path.realpath(f"{home}/settings.json"))[0].removeprefix(BOM)
    env = {k: v for k, v in dig(parse_dict(raw), dict, "env").items() if isinstance(v, (str, int))}
    kind = "shared" if shared else "its own" if os.path.lexists(f"{root}/{name}") else "none yet"
    on = str({**os.environ, **env}.get(TOOLS)) in ("1", "true")
    tools = "on" if on else f"off on current models: {PROG} install"
    print(f"list   {format_line(f'{root}/{name}', 900)} ({kind})\ntools  {tools}")
    for folder in os.listdir(f"{home}/projects") if os.path.isdir(root) else []:
        for s in read_siblings(target, f"{home}/projects/{folder}", os.getcwd(), root):
            if not s.why.startswith("started in"):
                left, why = sum(t.open for t in s.tasks), format_line(s.why, 300)
                print(f"{s.name}  {left} of {len(s.tasks)} open  {s.verdict}  {why}")
    return ""


def cmd_adopt(verb: str, source: str, target: str) -> str:
    """Adopt by hand, with the promises of the hook; return why not."""
    if not (is_component(source) and is_component(target)) or source == target:
        return "two different sessions are needed: --from ID --to ID"
    (root, name, shared), (taken, doubt) = read_where(target), read_owners(target)
    if shared or os.path.lexists(os.path.join(root, name)):
        return f"{name} is shared" if shared else f"{name} has a list, which is never replaced"
    if source in taken or doubt:
        return f"{source}: {taken.get(source, doubt)}"
    if not any(t.open for t in read_tasks(os.path.join(root, source))):
        return f"{source} has no open task"
    publish(root, source, name)
    return ""


def cmd_setup(verb: str, source: str, target: str) -> str:
    """Put the hook and TOOLS into Claude's settings, or take them out; return why not."""
    path = os.path.realpath(link := os.path.abspath(f"{claude_home(os.environ)}/settings.json"))
    while not os.path.lexists(link):
        link = os.path.dirname(link)
    if not os.path.exists(link):  # on a disk that is not mounted, or another program's to make
        return f"{link} is a link that leads nowhere"
    draft, keep = f"{path}.{os.getpid()}", "\ue000{}\ue001".format  # of numbers, the digits
    load = json.JSONDecoder(parse_int=keep, parse_float=keep).decode
    mine, other = hook_command(), hook_command(other=True)
    ours = {"hooks": [{"type": "command", "command": mine, "timeout": keep(10)}]}
    add, drop = ([ours], [other]) if verb == "install" else ([], [mine, other])
    for _ in range(3):
        found, there = read_bytes(path, 1 << 24), os.path.exists(path)
        codec = "utf-8-sig" if found[0].startswith(BOM) else "utf-8"
        try:
            settings = load(found[0].decode(codec) if there else "{}")
            hooks, env = settings.get("hooks", {}), settings.get("env", {})
            groups, on = list.copy(hooks.get("SessionStart", [])), env.get(TOOLS, "1")
            tools = {k: v for k, v in {**env, TOOLS: on}.items() if add or (k, v) != (TOOLS, "1")}
            left = [[h for h in g.get("hooks", []) if h.get("command") not in drop] for g in groups]
            pairs = zip(groups, left)  # in a group, others may have hooks too
            starts = [{**g, "hooks": x} if x else g for g, x in pairs if x or not g.get("hooks")]
            starts += [g for g in add if g not in groups]
            if (starts, tools) == (groups, env):
                return ""
            hooks["SessionStart"], settings["hooks"], settings["env"] = starts, hooks, tools
            for holder, key in ((hooks, "SessionStart"), (settings, "hooks"), (settings, "env")):
                if not holder[key]:
                    del holder[key]
            text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
            raw = text.replace('"\ue000', "").replace('\ue001"', "").encode(codec)
            if load(raw.decode(codec)) != settings:
                raise ValueError("it holds U+E000 or U+E001")
        except (ValueError, TypeError, AttributeError, RecursionError) as e:
            return f"{path} cannot be read as what Claude writes: {e}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(draft, "xb") as f:
                os.fchown(f.fileno(), os.stat(path if there else os.path.dirname(path)).st_uid, -1)
                os.fchmod(f.fileno(), stat.S_IMODE(os.stat(path).st_mode) if there else 0o600)
                f.write(raw)
                f.flush()
                os.fsync(f.fileno())
            if read_bytes(path, 1 << 24) == found:  # else begin anew with what is there now
                os.replace(draft, path)
                sync_rename(path)
                return ""
        finally:
            if os.path.exists(draft):
                os.unlink(draft)
    return f"{path} is being changed by another program"


def main(argv: Sequence[str] | None = None) -> int | str:
    known = {"status": cmd_status, "adopt": cmd_adopt, "install": cmd_setup, "uninstall": cmd_setup}
    given = list(sys.argv[1:] if argv is None else argv)
    if argv is None and sys.getfilesystemencoding() != "utf-8":  # else names were other words
        os.execv(sys.executable, [sys.executable, "-IS", "-X", "utf8", __file__, *given])
    if not given and not (os.isatty(0) and os.isatty(1)):
        try:
            told = "" if os.isatty(0) else hook(read_input())
            output = {"hookEventName": "SessionStart", "additionalContext": told}
            if told:
                os.write(1, json.dumps({"hookSpecificOutput": output}).encode())
        except Exception as e:  # the only broad one: whatever is wrong, the session must start
            import contextlib

            with contextlib.suppress(OSError):
                os.write(2, f"{PROG}: {e!r}\n".encode("utf-8", "replace"))
        return 0
    verb, options = "".join(given[:1]) or "--help", dict(zip(given[1::2], given[2::2]))
    if verb in ("-h", "--help", "--version"):
        print(f"{PROG} {VERSION}" if verb == "--version" else __doc__)
        return 0
    if verb not in known or len(given) % 2 == 0 or set(options) - {"--from", "--to"}:
        print(f"{PROG}: unknown command or option, see {PROG} --help", file=sys.stderr)
        return 2
    try:
        target = options.get("--to") or os.environ.get("CLAUDE_CODE_SESSION_ID", "")
        why = known[verb](verb, options.get("--from", ""), target)
        print(end="", flush=True)
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or what is left is tried again at the end
        why = ": ".join(filter(None, (e.filename, e.strerror))) if e.errno != errno.EPIPE else ""
    return f"{PROG}: {verb}: {format_line(why, 2000)}" if why else 0  # a text: printed, status 1


if __name__ == "__main__":
    sys.exit(main())
