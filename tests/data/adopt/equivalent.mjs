// What task_adopt.py does with an own list, and without any candidate, written for node: the
// same files are read and the same object is printed.  For comparing costs, not for use.
import { existsSync, lstatSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";

const STATUSES = ["in_progress", "pending", "completed"];
const payload = JSON.parse(readFileSync(0, "utf8"));
const root = join(process.env.HOME, ".claude", "tasks");
const own = join(root, payload.session_id);

function line(text, limit) {
  const plain = text.replace(/[\p{C}\p{Z}]+/gu, " ").trim();
  const raw = Buffer.from(plain);
  if (raw.length <= limit) return plain;
  return raw.subarray(0, limit - 3).toString("utf8").replace(/\ufffd+$/, "") + "…";
}

function readTasks(folder) {
  const tasks = [];
  for (const name of readdirSync(folder)) {
    if (!/^[1-9][0-9]*\.json$/.test(name)) continue;
    const path = join(folder, name);
    const found = lstatSync(path);
    if (!found.isFile() || found.size > 1 << 20) continue;
    try {
      const task = JSON.parse(readFileSync(path, "utf8"));
      const lists = Array.isArray(task.blocks) && Array.isArray(task.blockedBy);
      const texts = typeof task.subject === "string" && typeof task.description === "string";
      if (`${task.id}.json` !== name || !lists || !texts || !STATUSES.includes(task.status)) continue;
      if (task.status === "completed" || task.metadata?._internal) continue;
      tasks.push({ ...task, number: Number(task.id), changed: found.mtimeMs });
    } catch {
      continue;
    }
  }
  return tasks;
}

function render(tasks) {
  const newest = [...tasks].sort((a, b) => b.changed - a.changed).slice(0, 40);
  const order = (t) => STATUSES.indexOf(t.status);
  newest.sort((a, b) => order(a) - order(b) || a.number - b.number);
  let text = `task-adopt: ${tasks.length} open tasks are in your list (TaskList; Ctrl+T once updated):`;
  let used = Buffer.byteLength(`${text}\n(${tasks.length} more not shown)`);
  let shown = 0;
  for (const t of newest) {
    const more = line(t.description, 240);
    const one = `#${t.number} [${t.status}] ${line(t.subject, 160)}${more ? `: ${more}` : ""}`;
    if (used + Buffer.byteLength(one) >= 4094) break;
    used += Buffer.byteLength(one) + 1;
    text += `\n${one}`;
    shown += 1;
  }
  return tasks.length > shown ? `${text}\n(${tasks.length - shown} more not shown)` : text;
}

let told = "";
if (existsSync(own)) {
  const tasks = readTasks(own);
  told = tasks.length ? render(tasks) : "";
} else if (existsSync(root)) {
  const lists = new Set(readdirSync(root));
  const names = readdirSync(dirname(payload.transcript_path)).filter((n) => n.endsWith(".jsonl"));
  const hits = names.map((n) => n.slice(0, -6)).filter((n) => lists.has(n));
  if (hits.length) process.exit(1); // choosing is not compared
}
if (told) {
  const output = { hookEventName: "SessionStart", additionalContext: told };
  process.stdout.write(JSON.stringify({ hookSpecificOutput: output }));
}
