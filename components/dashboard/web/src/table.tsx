// A table that renders only the rows that are visible.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { navigate } from "./router";

export interface TableColumn<T> {
  name: string;
  description?: string;
  /** value is what the column is sorted by, and what its width depends on. */
  value: (row: T) => unknown;
  render?: (row: T) => ComponentChildren;
  /** numeric aligns the column to the right. */
  numeric?: boolean;
}

interface Props<T> {
  label: string;
  columns: TableColumn<T>[];
  rows: T[];
  rowKey: (row: T) => string;
  href?: (row: T) => string | undefined;
  sort: { column: string; descending: boolean };
  onSort: (column: string, descending: boolean) => void;
  selected?: Set<string>;
  onSelect?: (selected: Set<string>) => void;
  /** height is the maximum height. Without it, the table fills its parent. */
  height?: number;
}

const rowHeight = 30;
const extra = 8; // rows that are rendered above and below the visible ones

export function Table<T>(p: Props<T>) {
  const body = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(0);
  const { rows, columns } = p;
  useLayoutEffect(() => {
    const el = body.current!;
    const measure = () => setView((v) => scrolled(el, v));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(el);
    return () => observer.disconnect();
  }, []);
  const template = useMemo(() => widths(columns, rows), [columns, rows.length > 0, Math.ceil(rows.length / 50)]);
  const first = Math.max(0, Math.floor(view.top / rowHeight) - extra);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + extra);
  useEffect(() => {
    if (active >= rows.length) setActive(Math.max(0, rows.length - 1));
  }, [rows.length]);

  const reveal = (i: number) => {
    const el = body.current!;
    const head = rowHeight;
    const top = i * rowHeight;
    if (top < el.scrollTop) el.scrollTop = top;
    else if (top + rowHeight > el.scrollTop + el.clientHeight - head) el.scrollTop = top + rowHeight - el.clientHeight + head;
  };
  const toggle = (row: T) => {
    if (!p.selected || !p.onSelect) return;
    const next = new Set(p.selected);
    if (!next.delete(p.rowKey(row))) next.add(p.rowKey(row));
    p.onSelect(next);
  };
  const onKey = (e: KeyboardEvent) => {
    if ((e.target as Element).closest("[role=columnheader], input")) return;
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 2);
    const to: Record<string, number> = {
      ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: rows.length - 1,
    };
    if (e.key in to) {
      e.preventDefault();
      const next = Math.max(0, Math.min(rows.length - 1, to[e.key]));
      setActive(next);
      reveal(next);
    } else if (e.key === "Enter" && rows[active]) {
      const address = p.href?.(rows[active]);
      if (address) navigate(address);
    } else if (e.key === " " && rows[active] && p.onSelect) {
      e.preventDefault();
      toggle(rows[active]);
    }
  };
  const columnsStyle = (p.onSelect ? "34px " : "") + template;
  return (
    <div
      class="table" role="grid" aria-label={p.label} aria-rowcount={rows.length + 1} aria-colcount={columns.length} tabIndex={0}
      aria-activedescendant={rows.length ? `row-${active}` : undefined} ref={body} onKeyDown={onKey}
      onScroll={() => setView((v) => scrolled(body.current!, v))}
      style={p.height ? { maxHeight: p.height + "px" } : undefined}
    >
      <div class="thead" role="row" aria-rowindex={1} style={{ gridTemplateColumns: columnsStyle }}>
        {p.onSelect && <span role="columnheader"><span class="hidden">Selected</span></span>}
        {columns.map((c) => {
          const sorted = p.sort.column === c.name;
          return (
            <span
              key={c.name} role="columnheader" class={c.numeric ? "num" : ""} title={c.description}
              aria-sort={sorted ? (p.sort.descending ? "descending" : "ascending") : "none"}
            >
              <button class="plain" onClick={() => p.onSort(c.name, sorted && !p.sort.descending)}>
                {c.name}
                <span aria-hidden="true">{sorted ? (p.sort.descending ? " ↓" : " ↑") : ""}</span>
              </button>
            </span>
          );
        })}
      </div>
      <div class="tbody" role="presentation" style={{ height: rows.length * rowHeight + "px" }}>
        {rows.slice(first, last).map((row, i) => {
          const index = first + i;
          const key = p.rowKey(row);
          const address = p.href?.(row);
          return (
            <div
              key={key} id={`row-${index}`} role="row" aria-rowindex={index + 2} aria-selected={p.onSelect ? !!p.selected?.has(key) : undefined}
              class={index === active ? "tr active" : "tr"} style={{ top: index * rowHeight + "px", gridTemplateColumns: columnsStyle }}
              onClick={(e) => {
                setActive(index);
                const target = e.target as Element;
                if (address && !target.closest("a,button,input,label") && !getSelection()?.toString()) navigate(address);
              }}
            >
              {p.onSelect && (
                <span role="gridcell">
                  <input type="checkbox" tabIndex={-1} aria-label={"Select " + columns[0].value(row)} checked={!!p.selected?.has(key)} onChange={() => toggle(row)} />
                </span>
              )}
              {columns.map((c, n) => {
                const content = c.render ? c.render(row) : String(c.value(row) ?? "");
                return (
                  <span key={c.name} role="gridcell" class={c.numeric ? "num" : ""} title={typeof content === "string" ? content : undefined}>
                    {n === 0 && address ? <a href={address} tabIndex={-1}>{content}</a> : content}
                  </span>
                );
              })}
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** scrolled returns the visible part of an element, or the previous one until it has moved by some rows, so that scrolling does not render for each pixel. */
function scrolled(el: HTMLElement, before: { top: number; height: number }) {
  const step = rowHeight * 4;
  const top = Math.floor(el.scrollTop / step) * step;
  return before.top === top && before.height === el.clientHeight ? before : { top, height: el.clientHeight };
}

/** widths returns the widths of columns, from the longest values of some rows. */
function widths<T>(columns: TableColumn<T>[], rows: T[]): string {
  const step = Math.max(1, Math.floor(rows.length / 200));
  return columns
    .map((c, n) => {
      let longest = c.name.length + 2;
      for (let i = 0; i < rows.length; i += step) longest = Math.max(longest, String(c.value(rows[i]) ?? "").length);
      const chars = Math.min(longest, n === 0 ? 60 : 44);
      return `minmax(${Math.min(chars, 16) + 1}ch, ${chars + 2}fr)`;
    })
    .join(" ");
}
