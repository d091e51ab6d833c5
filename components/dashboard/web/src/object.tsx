// The page of an object.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Actions } from "./actions";
import { get } from "./api";
import { WorkloadChain } from "./chain";
import { collectionPath, objectPath, ofKind, pageOf, type Resource } from "./discovery";
import { explained, Explanation } from "./explanation";
import { plural } from "./format";
import { Forwarding } from "./forwards";
import { Lazy } from "./lazy";
import { rowKey, sortRows, tableColumns, type Row, useTable } from "./list";
import { Logs } from "./logs";
import { Metrics } from "./metrics";
import { setQuery, type Route } from "./router";
import { useWatch } from "./stream";
import { Table } from "./table";
import { Age, Loading, Problem, Status, Tabs, useLoad } from "./ui";

interface Props {
  resource: Resource;
  all: Resource[];
  namespace: string;
  name: string;
  route: Route;
  /** forwarding reports whether the server forwards ports. */
  forwarding: boolean;
}

/** useObject watches one object, or loads it once if its type cannot be watched. */
function useObject(resource: Resource, namespace: string, name: string) {
  const path = objectPath(resource, namespace, name);
  const canWatch = resource.verbs.includes("watch");
  const watched = useWatch<any>(canWatch ? { path: collectionPath(resource, namespace), view: "object", fields: "metadata.name=" + name } : undefined);
  // Users may be permitted to get an object that they may not watch.
  const fallback = !canWatch || watched.error?.code === 403;
  const loaded = useLoad(fallback ? path : "", async () => (fallback ? get(path) : undefined));
  if (fallback) return { object: loaded.value, error: loaded.error, gone: false };
  return { object: watched.list[0], error: watched.error, gone: watched.synced && watched.list.length === 0 };
}

export function ObjectPage({ resource, all, namespace, name, route, forwarding }: Props) {
  const { object, error, gone } = useObject(resource, namespace, name);
  const [last, setLast] = useState<any>();
  useEffect(() => object && setLast(object), [object]);
  const shown = object ?? last;
  const path = objectPath(resource, namespace, name);
  const isPod = resource.group === "" && resource.kind === "Pod";
  const selector = shown && podSelector(resource, shown);
  const tabs = [
    { id: "summary", label: "Summary" },
    { id: "yaml", label: "YAML" },
    { id: "events", label: "Events" },
    ...(isPod || selector ? [{ id: "logs", label: "Logs" }] : []),
    ...(isPod ? [{ id: "terminal", label: "Terminal" }] : []),
  ];
  const tab = tabs.some((t) => t.id === route.query.get("tab")) ? route.query.get("tab")! : "summary";
  return (
    <section class="page fill">
      <header class="page-head">
        <h1><span class="muted">{resource.kind}</span> {namespace && <span class="muted">{namespace}/</span>}{name}</h1>
        {shown && !gone && <Actions resource={resource} object={shown} path={path} />}
      </header>
      {error ? <Problem error={error} /> : null}
      {gone && last && <p class="notice warn" role="status">The object has been deleted. This is its last state.</p>}
      {gone && !last && <Problem error={{ code: 404, message: `${resource.kind} ${name} does not exist.` }} />}
      {!shown && !error && !gone && <Loading />}
      {shown && (
        <>
          <Tabs tabs={tabs} active={tab} onSelect={(id) => setQuery({ tab: id === "summary" ? "" : id, attach: "" })} />
          <div id="panel" role="tabpanel" aria-labelledby={"tab-" + tab} class="panel" tabIndex={0}>
            {tab === "summary" && <Summary resource={resource} all={all} object={shown} forwarding={forwarding && !gone} />}
            {tab === "yaml" && <Lazy load={() => import("./yaml")} render={(m) => <m.YamlTab path={path} version={shown.metadata.resourceVersion} />} />}
            {tab === "events" && <Events all={all} object={shown} kind={resource.kind} />}
            {tab === "logs" && <Logs namespace={namespace} pod={isPod ? shown : undefined} labels={selector} />}
            {tab === "terminal" && <Lazy load={() => import("./terminal")} render={(m) => <m.TerminalTab pod={shown} attach={route.query.get("attach") ?? ""} />} />}
          </div>
        </>
      )}
    </section>
  );
}

/** podSelector returns the label selector of the pods of a workload or Service, or undefined if it has none. */
function podSelector(resource: Resource, object: any): string | undefined {
  const s = object.spec?.selector;
  if (!s || !["apps", "batch", ""].includes(resource.group)) return undefined;
  if (resource.kind === "Service") return labelText(s);
  if (!s.matchLabels && !s.matchExpressions) return resource.kind === "ReplicationController" ? labelText(s) : undefined;
  const parts = [labelText(s.matchLabels ?? {})];
  for (const e of s.matchExpressions ?? []) {
    if (e.operator === "Exists") parts.push(e.key);
    else if (e.operator === "DoesNotExist") parts.push("!" + e.key);
    else parts.push(`${e.key} ${e.operator === "In" ? "in" : "notin"} (${e.values.join(",")})`);
  }
  return parts.filter(Boolean).join(",");
}

function labelText(labels: Record<string, string>): string {
  return Object.entries(labels).map(([k, v]) => `${k}=${v}`).join(",");
}

function Summary({ resource, all, object, forwarding }: { resource: Resource; all: Resource[]; object: any; forwarding: boolean }) {
  const m = object.metadata;
  const owners: any[] = m.ownerReferences ?? [];
  const selector = podSelector(resource, object);
  const podResource = all.find((r) => r.group === "" && r.plural === "pods");
  const setResource = all.find((r) => r.group === "apps" && r.plural === "replicasets");
  const sliceResource = all.find((r) => r.group === "discovery.k8s.io" && r.plural === "endpointslices");
  const isPod = resource.group === "" && resource.kind === "Pod";
  const isNode = resource.group === "" && resource.kind === "Node";
  return (
    <div class="summary">
      {explained(resource) && <Explanation key={m.uid} resource={resource} object={object} />}
      <dl class="facts">
        <Fact name="Created"><Age time={m.creationTimestamp} /> ago <span class="muted">{m.creationTimestamp && new Date(m.creationTimestamp).toLocaleString()}</span></Fact>
        {m.deletionTimestamp && <Fact name="Terminating"><Age time={m.deletionTimestamp} /></Fact>}
        {owners.length > 0 && (
          <Fact name="Owner">
            {owners.map((o) => {
              const r = ofKind(all, o.apiVersion, o.kind);
              return <span key={o.uid}>{r ? <a href={pageOf(r, r.namespaced ? m.namespace : "", o.name)}>{o.kind} {o.name}</a> : `${o.kind} ${o.name}`} </span>;
            })}
          </Fact>
        )}
        {facts(resource, object, all)}
        {m.labels && <Fact name="Labels"><Pairs pairs={m.labels} /></Fact>}
        {m.annotations && <Fact name="Annotations"><Pairs pairs={m.annotations} long /></Fact>}
        {m.finalizers && <Fact name="Finalizers">{m.finalizers.join(", ")}</Fact>}
      </dl>
      {isPod && <Containers pod={object} />}
      {(isPod || isNode) && <Metrics all={all} kind={isPod ? "pods" : "nodes"} namespace={m.namespace} name={m.name} />}
      {forwarding && (isPod || (resource.group === "" && resource.kind === "Service" && selector)) && <Forwarding kind={isPod ? "Pod" : "Service"} object={object} />}
      {isPod && <Timeline pod={object} />}
      {object.status?.conditions && <Conditions list={object.status.conditions} />}
      {isNode && podResource && <Related title="Pods" resource={podResource} fields={"spec.nodeName=" + m.name} namespace="" />}
      {resource.group === "apps" && resource.kind !== "ControllerRevision" && selector && <WorkloadChain resource={resource} object={object} labels={selector} />}
      {resource.kind === "Deployment" && setResource && selector && <Related title="Replica sets" resource={setResource} labels={selector} namespace={m.namespace} />}
      {resource.kind === "Service" && sliceResource && <Related title="Endpoint slices" resource={sliceResource} labels={"kubernetes.io/service-name=" + m.name} namespace={m.namespace} />}
      {selector && podResource && <Related title="Pods" resource={podResource} labels={selector} namespace={m.namespace} />}
      {resource.kind === "Secret" && object.data && <Data data={object.data} secret />}
      {resource.kind === "ConfigMap" && object.data && <Data data={object.data} />}
      {!isPod && !isNode && resource.kind !== "Secret" && resource.kind !== "ConfigMap" && <Tree object={object} />}
    </div>
  );
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return <div><dt>{name}</dt><dd>{children}</dd></div>;
}

/** facts returns what is specific to some types. */
function facts(resource: Resource, object: any, all: Resource[]): ComponentChildren {
  const { spec = {}, status = {} } = object;
  const nodeResource = all.find((r) => r.group === "" && r.plural === "nodes");
  switch (resource.kind) {
    case "Pod":
      return (
        <>
          <Fact name="Status"><Status text={object.metadata.deletionTimestamp ? "Terminating" : status.reason || status.phase || "Pending"} /> {status.message}</Fact>
          {spec.nodeName && <Fact name="Node">{nodeResource ? <a href={pageOf(nodeResource, "", spec.nodeName)}>{spec.nodeName}</a> : spec.nodeName}</Fact>}
          <Fact name="Addresses">{(status.podIPs ?? []).map((i: any) => i.ip).join(", ") || "none yet"}</Fact>
          <Fact name="Service account">{spec.serviceAccountName}</Fact>
          <Fact name="Priority">{spec.priorityClassName || spec.priority || 0}, QoS class {status.qosClass}</Fact>
        </>
      );
    case "Node":
      return (
        <>
          <Fact name="Status"><Status text={spec.unschedulable ? "SchedulingDisabled" : "Schedulable"} /></Fact>
          <Fact name="System">{status.nodeInfo?.osImage}, {status.nodeInfo?.kernelVersion}, {status.nodeInfo?.architecture}</Fact>
          <Fact name="Kubelet">{status.nodeInfo?.kubeletVersion}, {status.nodeInfo?.containerRuntimeVersion}</Fact>
          <Fact name="Addresses">{(status.addresses ?? []).map((a: any) => `${a.address} (${a.type})`).join(", ")}</Fact>
          <Fact name="Allocatable"><Pairs pairs={status.allocatable ?? {}} /></Fact>
          {spec.taints && <Fact name="Taints">{spec.taints.map((t: any) => `${t.key}${t.value ? "=" + t.value : ""}:${t.effect}`).join(", ")}</Fact>}
        </>
      );
    case "Deployment":
    case "StatefulSet":
    case "ReplicaSet":
      return (
        <>
          <Fact name="Replicas">{status.readyReplicas ?? 0} of {spec.replicas ?? 1} ready, {status.updatedReplicas ?? status.replicas ?? 0} up to date</Fact>
          <Fact name="Images">{(spec.template?.spec?.containers ?? []).map((c: any) => c.image).join(", ")}</Fact>
        </>
      );
    case "DaemonSet":
      return <Fact name="Pods">{status.numberReady ?? 0} of {status.desiredNumberScheduled ?? 0} ready</Fact>;
    case "Service":
      return (
        <>
          <Fact name="Type">{spec.type}</Fact>
          <Fact name="Addresses">{[...(spec.clusterIPs ?? []), ...(status.loadBalancer?.ingress ?? []).map((i: any) => i.ip ?? i.hostname)].join(", ")}</Fact>
          <Fact name="Ports">{(spec.ports ?? []).map((p: any) => `${p.name ? p.name + ": " : ""}${p.port}${p.nodePort ? ":" + p.nodePort : ""}/${p.protocol} → ${p.targetPort}`).join(", ")}</Fact>
        </>
      );
  }
  return null;
}

function Pairs({ pairs, long }: { pairs: Record<string, string>; long?: boolean }) {
  const [open, setOpen] = useState(false);
  const entries = Object.entries(pairs);
  const shown = open ? entries : entries.slice(0, 8).map(([k, v]): [string, string] => [k, long && v.length > 120 ? v.slice(0, 120) + "…" : v]);
  const cut = entries.length > 8 || (long && entries.some(([, v]) => v.length > 120));
  return (
    <ul class="pairs">
      {shown.map(([k, v]) => <li key={k}><code>{k}{v !== "" && "="}{v}</code></li>)}
      {cut && <li><button class="plain link" onClick={() => setOpen(!open)}>{open ? "Show less" : `Show all ${entries.length}`}</button></li>}
    </ul>
  );
}

function Containers({ pod }: { pod: any }) {
  const rows = [
    ...(pod.spec.initContainers ?? []).map((c: any) => ({ c, type: c.restartPolicy === "Always" ? "sidecar" : "init", s: find(pod.status?.initContainerStatuses, c.name) })),
    ...pod.spec.containers.map((c: any) => ({ c, type: "", s: find(pod.status?.containerStatuses, c.name) })),
    ...(pod.spec.ephemeralContainers ?? []).map((c: any) => ({ c, type: "debug", s: find(pod.status?.ephemeralContainerStatuses, c.name) })),
  ];
  return (
    <section>
      <h2>Containers</h2>
      <div class="scroll" tabIndex={0}>
        <table class="simple">
          <thead><tr><th>Name</th><th>State</th><th>Restarts</th><th>Image</th><th>Requests</th><th>Limits</th><th>Ports</th></tr></thead>
          <tbody>
            {rows.map(({ c, type, s }) => (
              <tr key={c.name}>
                <td>{c.name} {type && <span class="muted">{type}</span>}</td>
                <td><State status={s} /></td>
                <td>{s?.restartCount ?? 0}</td>
                <td>{c.image}</td>
                <td>{amounts(c.resources?.requests)}</td>
                <td>{amounts(c.resources?.limits)}</td>
                <td>{(c.ports ?? []).map((p: any) => `${p.containerPort}/${p.protocol}`).join(", ")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

interface Step {
  name: string;
  from: number;
  to: number;
}

/** steps returns what happened between the creation of a pod and its readiness, as far as the pod reports it. */
function steps(pod: any): Step[] {
  const condition = (type: string) => {
    const c = pod.status?.conditions?.find((one: any) => one.type === type && one.status === "True");
    return c && Date.parse(c.lastTransitionTime);
  };
  const list: Step[] = [];
  let at = Date.parse(pod.metadata.creationTimestamp);
  const step = (name: string, to: number | undefined) => {
    if (!to || to < at) return;
    list.push({ name, from: at, to });
    at = to;
  };
  step("Scheduled", condition("PodScheduled"));
  step("Sandbox and volumes ready", condition("PodReadyToStartContainers"));
  for (const s of pod.status?.initContainerStatuses ?? []) {
    if (s.state?.terminated) step(`Init container ${s.name} completed`, Date.parse(s.state.terminated.finishedAt));
  }
  const started = (pod.status?.containerStatuses ?? []).map((s: any) => Date.parse(s.state?.running?.startedAt ?? s.state?.terminated?.startedAt ?? ""));
  if (started.length > 0 && !started.some(Number.isNaN)) step("Containers started", Math.max(...started));
  step("Ready", condition("Ready"));
  return list;
}

/** Timeline shows how long a pod took to become ready. */
function Timeline({ pod }: { pod: any }) {
  const list = steps(pod);
  if (list.length === 0) return null;
  const begin = list[0].from;
  const total = Math.max(1, list[list.length - 1].to - begin);
  return (
    <section>
      <h2>Timeline <span class="muted">from the creation</span></h2>
      <table class="simple timeline">
        <thead><tr><th>Step</th><th>After</th><th>Duration</th><th><span class="hidden">Bar</span></th></tr></thead>
        <tbody>
          {list.map((s) => (
            <tr key={s.name}>
              <td>{s.name}</td><td>{(s.to - begin) / 1000} s</td><td>{(s.to - s.from) / 1000} s</td>
              <td><span class="span" style={{ marginLeft: `${(100 * (s.from - begin)) / total}%`, width: `max(3px, ${(100 * (s.to - s.from)) / total}%)` }} /></td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="muted">The API server stores times in whole seconds. Restarts move the start of containers.</p>
    </section>
  );
}

function find(list: any[] | undefined, name: string): any {
  return list?.find((s) => s.name === name);
}

function amounts(r: Record<string, string> | undefined): string {
  return Object.entries(r ?? {}).map(([k, v]) => `${k} ${v}`).join(", ");
}

function State({ status }: { status: any }) {
  const s = status?.state ?? {};
  if (s.running) return <><Status text={status.ready ? "Running" : "NotReady"} /> since <Age time={s.running.startedAt} /></>;
  if (s.waiting) return <><Status text={s.waiting.reason ?? "Waiting"} /> {s.waiting.message}</>;
  if (s.terminated) return <><Status text={s.terminated.reason ?? "Terminated"} /> exit code {s.terminated.exitCode} {s.terminated.message}</>;
  return <Status text="Pending" />;
}

function Conditions({ list }: { list: any[] }) {
  return (
    <section>
      <h2>Conditions</h2>
      <div class="scroll" tabIndex={0}>
        <table class="simple">
          <thead><tr><th>Type</th><th>Status</th><th>Reason</th><th>Message</th><th>Since</th></tr></thead>
          <tbody>{list.map((c) => <tr key={c.type}><td>{c.type}</td><td>{c.status}</td><td>{c.reason}</td><td>{c.message}</td><td><Age time={c.lastTransitionTime} /></td></tr>)}</tbody>
        </table>
      </div>
    </section>
  );
}

/** Related shows the objects of a type that belong to an object. */
function Related({ title, resource, labels, fields, namespace }: { title: string; resource: Resource; labels?: string; fields?: string; namespace: string }) {
  const data = useTable(resource, namespace, labels, fields);
  const [sort, setSort] = useState({ column: "Name", descending: false });
  const columns = useMemo(() => tableColumns(data.columns, resource.namespaced && !namespace, false), [data.columns]);
  const rows = useMemo(() => sortRows(data.list as Row[], columns, sort.column, sort.descending), [data.list, columns, sort]);
  return (
    <section>
      <h2>{title} <span class="muted">{data.synced ? rows.length : ""}</span></h2>
      {data.error && <Problem error={data.error} />}
      {!data.synced && !data.error && <Loading rows={2} />}
      {rows.length > 0 && (
        <Table
          label={title} columns={columns} rows={rows} rowKey={rowKey} href={(r) => pageOf(resource, r.ns, r.name)}
          sort={sort} onSort={(column, descending) => setSort({ column, descending })} height={330}
        />
      )}
      {data.synced && rows.length === 0 && <p class="muted">None.</p>}
    </section>
  );
}

function Data({ data, secret }: { data: Record<string, string>; secret?: boolean }) {
  const [shown, setShown] = useState(new Set<string>());
  const toggle = (key: string) => {
    const next = new Set(shown);
    if (!next.delete(key)) next.add(key);
    setShown(next);
  };
  return (
    <section>
      <h2>Data</h2>
      {Object.entries(data).map(([key, value]) => (
        <div key={key} class="data">
          <h3>{key} {secret && <button aria-pressed={shown.has(key)} onClick={() => toggle(key)}>{shown.has(key) ? "Hide" : "Show"}</button>}</h3>
          {(!secret || shown.has(key)) && <pre tabIndex={0} aria-label={key}>{secret ? decode(value) : value}</pre>}
        </div>
      ))}
    </section>
  );
}

function decode(base64: string): string {
  try {
    const raw = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    return new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    return `(binary) ${base64}`;
  }
}

/** Tree shows the fields of an object other than its metadata. */
function Tree({ object }: { object: any }) {
  const rest = Object.entries(object).filter(([k]) => !["apiVersion", "kind", "metadata"].includes(k));
  return <section><h2>Fields</h2>{rest.map(([k, v]) => <Node key={k} name={k} value={v} open={k === "spec"} />)}</section>;
}

function Node({ name, value, open }: { name: string; value: unknown; open?: boolean }) {
  if (value === null || typeof value !== "object") return <div class="leaf"><span class="key">{name}</span> {String(value)}</div>;
  const entries = Object.entries(value);
  if (entries.length === 0) return <div class="leaf"><span class="key">{name}</span> <span class="muted">empty</span></div>;
  return (
    <details open={open}>
      <summary><span class="key">{name}</span> <span class="muted">{Array.isArray(value) ? plural(entries.length, "item") : ""}</span></summary>
      {entries.map(([k, v]) => <Node key={k} name={k} value={v} />)}
    </details>
  );
}

function Events({ all, object, kind }: { all: Resource[]; object: any; kind: string }) {
  const resource = all.find((r) => r.group === "" && r.plural === "events");
  const path = resource && collectionPath(resource, object.metadata.namespace ?? "");
  const data = useWatch<any>(path ? { path, view: "object", fields: `involvedObject.name=${object.metadata.name},involvedObject.kind=${kind}` } : undefined);
  const list = useMemo(() => [...data.list].sort((a, b) => (time(a) < time(b) ? 1 : -1)), [data.list]);
  if (data.error) return <Problem error={data.error} />;
  if (!data.synced) return <Loading />;
  if (list.length === 0) return <p class="empty">There are no events. The cluster deletes events after about an hour.</p>;
  return (
    <div class="scroll" tabIndex={0}>
      <table class="simple">
        <thead><tr><th>Last seen</th><th>Type</th><th>Reason</th><th>Message</th><th>Count</th><th>From</th></tr></thead>
        <tbody>
          {list.map((e) => (
            <tr key={e.metadata.uid}>
              <td><Age time={time(e)} /></td><td><Status text={e.type} /></td><td>{e.reason}</td><td>{e.message}</td><td>{e.count ?? e.series?.count ?? 1}</td><td>{e.source?.component || e.reportingComponent}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function time(e: any): string {
  return e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp;
}

