// Texts for values.

/** age returns how long ago a time is, like kubectl. */
export function age(time: string | undefined, now = Date.now()): string {
  if (!time) return "";
  const s = Math.max(0, Math.floor((now - Date.parse(time)) / 1000));
  if (s < 120) return `${s}s`;
  if (s < 600) return `${Math.floor(s / 60)}m${s % 60 ? (s % 60) + "s" : ""}`;
  if (s < 3 * 3600) return `${Math.floor(s / 60)}m`;
  if (s < 8 * 3600) return `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60)}m`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)}h`;
  if (s < 8 * 86400) return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}

/** bytes returns an amount of memory. */
export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

/** cores returns an amount of CPU of thousandths of a core. */
export function cores(milli: number): string {
  const n = milli / 1000;
  return n >= 10 ? n.toFixed(0) : n.toFixed(n < 1 ? 2 : 1);
}

const factors: Record<string, number> = {
  n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50,
};

/** quantity parses a quantity such as 100m or 2Gi. It returns 0 if it is not valid. */
export function quantity(text: string | undefined): number {
  const m = /^([0-9.]+)([a-zA-Z]*)$/.exec(text ?? "");
  return m ? Number(m[1]) * (factors[m[2]] ?? 0) : 0;
}

/** plural returns a number with a noun. */
export function plural(n: number, noun: string, many = noun + "s"): string {
  return `${n} ${n === 1 ? noun : many}`;
}

const collator = new Intl.Collator("en", { numeric: true });

/** compare orders the cells of a table: numbers, quantities and durations by value, other text by its numbers. */
export function compare(a: unknown, b: unknown): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  const x = String(a ?? ""), y = String(b ?? "");
  const p = /^[0-9.]+[a-zA-Z]{0,2}$/;
  if (p.test(x) && p.test(y)) {
    const d = quantity(x) - quantity(y);
    if (d) return d;
  }
  return collator.compare(x, y);
}

/** tone returns how a status is coloured. The text always says the same. */
export function tone(status: string): "good" | "bad" | "warn" | "idle" | "" {
  if (/^(Running|Ready|Active|Bound|Available|Healthy|True|Established|Approved.*|Normal)$/.test(status)) return "good";
  if (/^(Completed|Succeeded|Complete)$/.test(status)) return "idle";
  if (/(Error|BackOff|Fail|Evicted|OOM|Invalid|Lost|NotReady|Unknown|Denied)/i.test(status)) return "bad";
  if (/^(Pending|ContainerCreating|PodInitializing|Terminating|Init:.*|Released|Warning|SchedulingDisabled|.*,SchedulingDisabled|Suspended|Unschedulable)$/.test(status)) return "warn";
  return "";
}
