// The page of a type of objects.
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, get, send } from "./api";
import { collectionPath, objectPath, pageOf, type Resource } from "./discovery";
import { age, compare, plural } from "./format";
import { title } from "./names";
import { setQuery, type Route } from "./router";
import { type Column, useWatch } from "./stream";
import { Table, type TableColumn } from "./table";
import { Age, attempt, Dialog, Loading, Problem, Status, useLoad } from "./ui";

/** Row is a row as the stream sends it. */
export interface Row {
  name: string;
  ns?: string;
  created?: string;
  deleted?: string;
  labels?: Record<string, string>;
  cells: unknown[];
}

export function rowKey(r: Row): string {
  return (r.ns ?? "") + "/" + r.name;
}

/** useTable watches the rows of a type, or loads them once if the type cannot be watched. */
export function useTable(r: Resource, namespace: string, labels = "", fields = "") {
  const canWatch = r.verbs.includes("watch");
  const path = collectionPath(r, r.namespaced ? namespace : "");
  const watched = useWatch<Row>(canWatch ? { path, view: "table", labels, fields } : undefined);
  const loaded = useLoad(canWatch ? "" : path, async () => {
    if (canWatch) return undefined;
    const t = await get(path, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
    const rows: Row[] = (t.rows ?? []).map((row: any) => ({
      name: row.object?.metadata?.name, ns: row.object?.metadata?.namespace, created: row.object?.metadata?.creationTimestamp, cells: row.cells,
    }));
    return { list: rows, columns: (t.columnDefinitions ?? []) as Column[] };
  });
  if (canWatch) return { ...watched, reload: undefined };
  return {
    list: loaded.value?.list ?? [], columns: loaded.value?.columns ?? [], synced: !!loaded.value, error: loaded.error as any, version: 0, reload: loaded.reload,
  };
}

/** tableColumns returns the columns of a table of the API server. */
export function tableColumns(columns: Column[], namespaced: boolean, wide: boolean): TableColumn<Row>[] {
  const out: TableColumn<Row>[] = [];
  columns.forEach((c, i) => {
    if (c.priority > 0 && !wide) return;
    const column: TableColumn<Row> = { name: c.name, description: c.description, value: (r) => r.cells[i] };
    if (c.name === "Age" || c.name === "Last Seen" && c.type !== "string") {
      column.value = (r) => age(r.created);
      column.render = (r) => <Age time={r.created} />;
    } else if (/^(Status|Phase|State|Reason|Type|Conditions)$/.test(c.name)) {
      column.render = (r) => <Status text={r.deleted && c.name === "Status" ? "Terminating" : String(r.cells[i] ?? "")} />;
    } else if (c.type === "integer" || c.type === "number") {
      column.numeric = true;
    }
    out.push(column);
    if (i === 0 && namespaced) out.push({ name: "Namespace", value: (r) => r.ns ?? "" });
  });
  return out;
}

/** sortRows orders rows by a column. */
export function sortRows(rows: Row[], columns: TableColumn<Row>[], column: string, descending: boolean): Row[] {
  const c = columns.find((one) => one.name === column);
  if (!c) return rows;
  const byAge = column === "Age";
  // Sorting by computed keys calls value once for each row.
  const keyed = rows.map((row) => ({ row, key: byAge ? -Date.parse(row.created ?? "") : c.value(row) }));
  keyed.sort((a, b) => compare(a.key, b.key) || compare(rowKey(a.row), rowKey(b.row)));
  if (descending) keyed.reverse();
  return keyed.map((k) => k.row);
}

export function ListPage({ resource, route, namespace }: { resource: Resource; route: Route; namespace: string }) {
  const search = route.query.get("q") ?? "";
  const wide = route.query.get("wide") === "1";
  const sort = { column: route.query.get("sort") ?? "Name", descending: route.query.get("desc") === "1" };
  const data = useTable(resource, namespace, route.query.get("labels") ?? "", route.query.get("fields") ?? "");
  const [selected, setSelected] = useState(new Set<string>());
  const [deleting, setDeleting] = useState(false);
  useEffect(() => setSelected(new Set()), [resource.plural, resource.group, namespace]);

  const columns = useMemo(
    () => tableColumns(data.columns, resource.namespaced && !namespace, wide),
    [data.columns, resource, namespace, wide],
  );
  const rows = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    let list = data.list;
    if (words.length) list = list.filter((r) => words.every((w) => matches(r, w)));
    return sortRows(list, columns, sort.column, sort.descending);
  }, [data.version, data.list, columns, search, sort.column, sort.descending]);

  return (
    <section class="page fill">
      <header class="page-head">
        <h1>{title(resource.kind)}</h1>
        <span class="muted" aria-live="polite">
          {data.synced ? (rows.length === data.list.length ? rows.length : `${rows.length} of ${data.list.length}`) : ""}
        </span>
        <input
          type="search" placeholder="Filter: words, name, label=value" aria-label={"Filter " + resource.plural} value={search}
          onInput={(e) => setQuery({ q: e.currentTarget.value })}
        />
        <label class="check"><input type="checkbox" checked={wide} onChange={() => setQuery({ wide: wide ? "" : "1" })} /> All columns</label>
        {data.reload && <button onClick={data.reload}>Load again</button>}
        {selected.size > 0 && <button class="danger" onClick={() => setDeleting(true)}>Delete {selected.size}…</button>}
      </header>
      {data.error && <Problem error={data.error} />}
      {!data.synced && !data.list.length && !data.error && <Loading rows={12} />}
      {data.synced && data.list.length === 0 && (
        <p class="empty">There are no {resource.plural}{resource.namespaced && namespace ? ` in namespace ${namespace}` : ""}.</p>
      )}
      {data.synced && data.list.length > 0 && rows.length === 0 && <p class="empty">Nothing matches the filter.</p>}
      {rows.length > 0 && columns.length > 0 && (
        <Table
          label={resource.plural} columns={columns} rows={rows} rowKey={rowKey} href={(r) => pageOf(resource, r.ns, r.name)}
          sort={sort} onSort={(column, descending) => setQuery({ sort: column, desc: descending ? "1" : "" })}
          selected={selected} onSelect={resource.verbs.includes("delete") ? setSelected : undefined}
        />
      )}
      {deleting && (
        <DeleteMany resource={resource} keys={[...selected]} onClose={() => setDeleting(false)} onDone={() => { setDeleting(false); setSelected(new Set()); }} />
      )}
    </section>
  );
}

/** matches reports whether a row contains a word, or has a label NAME=VALUE. */
function matches(r: Row, word: string): boolean {
  if (r.name.toLowerCase().includes(word) || r.ns?.toLowerCase().includes(word)) return true;
  for (const c of r.cells) if (typeof c === "string" && c.toLowerCase().includes(word)) return true;
  if (word.includes("=")) {
    for (const [name, value] of Object.entries(r.labels ?? {})) if (`${name}=${value}`.toLowerCase().includes(word)) return true;
  }
  return false;
}

function DeleteMany({ resource, keys, onClose, onDone }: { resource: Resource; keys: string[]; onClose: () => void; onDone: () => void }) {
  const [busy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true);
    const ok = await attempt(async () => {
      const failed: string[] = [];
      for (const key of keys) {
        const [ns, name] = key.split("/");
        await send("DELETE", objectPath(resource, ns, name), { propagationPolicy: "Background" }).catch((err: ApiError) => {
          if (err.code !== 404) failed.push(err.message);
        });
      }
      if (failed.length) throw new Error(failed.join("; "));
    }, `Deleted ${plural(keys.length, resource.singular || resource.kind, resource.plural)}`);
    if (ok) onDone();
    else onClose();
  };
  return (
    <Dialog title={`Delete ${plural(keys.length, resource.singular || resource.kind, resource.plural)}?`} onClose={onClose}>
      <ul class="names">{keys.map((k) => <li key={k}>{k.replace(/^\//, "")}</li>)}</ul>
      <p>Objects that these own are deleted too. This cannot be undone.</p>
      <footer>
        <button onClick={onClose} autofocus>Cancel</button>
        <button class="danger" disabled={busy} onClick={run}>Delete</button>
      </footer>
    </Dialog>
  );
}
