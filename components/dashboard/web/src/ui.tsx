// Small parts of pages.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";
import type { Failure } from "./stream";
import { age, tone } from "./format";

/** Age shows how long ago a time is. */
export function Age({ time }: { time?: string }) {
  useClock();
  return time ? <time dateTime={time} title={new Date(time).toLocaleString()}>{age(time)}</time> : null;
}

const ticks = new Set<() => void>();
let ticker: ReturnType<typeof setInterval> | undefined;

/** useClock renders the component again every few seconds. */
export function useClock(): void {
  const [, set] = useState(0);
  useEffect(() => {
    const tick = () => set((n) => n + 1);
    ticks.add(tick);
    ticker ??= setInterval(() => document.hidden || ticks.forEach((f) => f()), 5000);
    return () => {
      ticks.delete(tick);
      if (ticks.size === 0) {
        clearInterval(ticker);
        ticker = undefined;
      }
    };
  }, []);
}

export function Status({ text }: { text: string }) {
  const t = tone(text);
  return t ? <span class={"status " + t}>{text}</span> : <>{text}</>;
}

/** Problem shows an error with what helps. */
export function Problem({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const e = error as Failure & { message: string };
  let help = "";
  if (e.code === 403) help = "Your user lacks this permission. Ask the administrator of the cluster for a Role or ClusterRole with it.";
  else if (e.code === 404) help = "It was deleted, or the cluster does not serve this type.";
  else if (e.code === 0) help = e.retries ? "The dashboard connects again automatically." : "Check that the command hyperkube dashboard and the cluster are running.";
  return (
    <div class="notice bad" role="alert">
      <strong>{e.code === 403 ? "Not permitted" : e.code === 404 ? "Not found" : "Error"}</strong>
      <p>{e.message}</p>
      {help && <p class="muted">{help}</p>}
      {onRetry && <button onClick={onRetry}>Try again</button>}
    </div>
  );
}

/** Loading is the placeholder of content that has not arrived. */
export function Loading({ rows = 6 }: { rows?: number }) {
  return (
    <div class="loading" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, i) => <span key={i} />)}
    </div>
  );
}

export interface Tab {
  id: string;
  label: string;
}

/** Tabs is a list of tabs, of which the arrow keys select one. */
export function Tabs({ tabs, active, onSelect }: { tabs: Tab[]; active: string; onSelect: (id: string) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const move = (e: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    e.preventDefault();
    const i = tabs.findIndex((t) => t.id === active);
    const next = tabs[(i + step + tabs.length) % tabs.length];
    onSelect(next.id);
    list.current?.querySelector<HTMLElement>(`#tab-${next.id}`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" ref={list} onKeyDown={move}>
      {tabs.map((t) => (
        <button
          key={t.id} id={"tab-" + t.id} role="tab" aria-selected={t.id === active} aria-controls="panel"
          tabIndex={t.id === active ? 0 : -1} onClick={() => onSelect(t.id)}
        >
          {t.label}
        </button>
      ))}
    </div>
  );
}

/** Dialog is a modal dialog. Escape closes it, and the focus returns to where it was. */
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    dialog.current!.querySelector<HTMLElement>("[autofocus]")?.focus();
    return () => before?.focus?.();
  }, []);
  return (
    <dialog
      ref={dialog} class={wide ? "wide" : ""} aria-labelledby="dialog-title"
      onCancel={(e) => { e.preventDefault(); onClose(); }}
      onClick={(e) => e.target === dialog.current && onClose()}
    >
      <div class="dialog-body">
        <h2 id="dialog-title">{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

let toasts: Toast[] = [];
let showToasts = () => {};
let nextToast = 1;

/** notify shows a message for some seconds. Errors stay until they are closed. */
export function notify(text: string, bad = false): void {
  const t = { id: nextToast++, text, bad };
  toasts = [...toasts, t];
  showToasts();
  if (!bad) setTimeout(() => dismiss(t.id), 5000);
}

function dismiss(id: number): void {
  toasts = toasts.filter((t) => t.id !== id);
  showToasts();
}

/** attempt runs an action and shows its result. It reports whether the action succeeded. */
export async function attempt(action: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await action();
    if (done) notify(done);
    return true;
  } catch (err) {
    const e = err as ApiError;
    notify(e.code === 403 ? "Not permitted: " + e.message : e.message, true);
    return false;
  }
}

export function Toasts() {
  const [, set] = useState(0);
  showToasts = () => set((n) => n + 1);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.map((t) => (
        <div key={t.id} class={t.bad ? "toast bad" : "toast"}>
          <span>{t.text}</span>
          <button class="plain" aria-label="Close message" onClick={() => dismiss(t.id)}>×</button>
        </div>
      ))}
    </div>
  );
}

/** Meter shows a share of a capacity. */
export function Meter({ label, used, total, text }: { label: string; used: number; total: number; text: string }) {
  const percent = total > 0 ? Math.min(100, Math.round((100 * used) / total)) : 0;
  return (
    <div class="meter">
      <div class="meter-label"><span>{label}</span><span>{text}</span></div>
      <div class="bar" role="meter" aria-label={`${label}: ${text}`} aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100}>
        <span class={percent > 90 ? "high" : ""} style={{ width: percent + "%" }} />
      </div>
    </div>
  );
}

/** useLoad loads a value when the component is shown, and again when key changes. */
export function useLoad<T>(key: string, load: () => Promise<T>): { value?: T; error?: unknown; reload: () => void } {
  const [state, set] = useState<{ key: string; value?: T; error?: unknown }>({ key: "" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let current = true;
    load().then(
      (value) => current && set({ key, value }),
      (error) => current && set({ key, error }),
    );
    return () => {
      current = false;
    };
  }, [key, round]);
  const reload = () => setRound((n) => n + 1);
  return state.key === key ? { ...state, reload } : { reload };
}
