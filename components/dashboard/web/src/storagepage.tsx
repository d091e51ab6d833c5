// The page with claims, volumes and classes.
import { useMemo } from "preact/hooks";
import { get } from "./api";
import { collectionPath, events, nodes, objectPath, ofKind, pageOf, pods as podType, type Resource, type TypeRef } from "./discovery";
import { bytes, plural, quantity } from "./format";
import { claimsOf, isDefault, usage, volumeProblem, type Claim } from "./storage";
import { useWatch } from "./stream";
import { Loading, Meter, Problem, Status, useLoad } from "./ui";

const claimType: TypeRef = { group: "", version: "v1", plural: "persistentvolumeclaims" };
const volumeType: TypeRef = { group: "", version: "v1", plural: "persistentvolumes" };
const classType: TypeRef = { group: "storage.k8s.io", version: "v1", plural: "storageclasses" };

/** usedBytes returns the used bytes of claims by namespace/name. Kubelets of which the user may not read the statistics are left out. */
async function usedBytes(names: string[]): Promise<Map<string, number>> {
  const answers = await Promise.allSettled(names.map((n) => get(objectPath(nodes, "", n) + "/proxy/stats/summary")));
  return new Map(answers.flatMap((a) => (a.status === "fulfilled" ? usage(a.value) : [])));
}

export function StoragePage({ all, namespace }: { all: Resource[]; namespace: string }) {
  const snapshotType = ofKind(all, "snapshot.storage.k8s.io/v1", "VolumeSnapshot");
  const watch = (type: TypeRef | undefined, ns = "", fields?: string) => useWatch<any>(type && { path: collectionPath(type, ns), view: "object", fields });
  const claims = watch(claimType, namespace);
  const volumes = watch(volumeType);
  const classes = watch(classType);
  const podList = watch(podType, namespace);
  const snapshots = watch(snapshotType, namespace);
  const eventList = watch(events, namespace, "involvedObject.kind=PersistentVolumeClaim");
  const list = useMemo(
    () => claimsOf({ claims: claims.list, volumes: volumes.list, classes: classes.list, pods: podList.list, snapshots: snapshots.list, events: eventList.list }),
    [claims.version, volumes.version, classes.version, podList.version, snapshots.version, eventList.version],
  );
  // Only kubelets with pods that use claims have statistics of them.
  const hosts = useMemo(() => {
    const names = podList.list.filter((p) => p.spec?.nodeName && p.spec.volumes?.some((v: any) => v.persistentVolumeClaim || v.ephemeral)).map((p) => p.spec.nodeName as string);
    return [...new Set(names)].sort();
  }, [podList.version]);
  const used = useLoad(hosts.join(), () => usedBytes(hosts)).value;
  const shown = new Set(list.map((c) => c.volume));
  const others = volumes.list.filter((v) => !shown.has(v.metadata.name) && (!namespace || !v.spec.claimRef || v.spec.claimRef.namespace === namespace));
  const failed = [claims, volumes, classes].find((w) => w.error && w.error.code !== 403);
  const denied = [claims, volumes, classes, podList].some((w) => w.error?.code === 403);
  return (
    <section class="page">
      <header class="page-head"><h1>Storage</h1><span class="muted">{plural(list.length, "claim")}, {list.filter((c) => c.problem).length} with problems</span></header>
      {failed && <Problem error={failed.error} />}
      {denied && <p class="notice warn">The page is incomplete, because your user may not read all claims, volumes, classes and pods.</p>}
      {!claims.synced && !claims.error && <Loading />}
      {claims.synced && list.length === 0 && <p class="empty">There are no claims.</p>}
      {list.length > 0 && <Claims list={list} used={used} snapshotType={snapshotType} />}
      {others.length > 0 && <Volumes list={others} />}
      {classes.list.length > 0 && <Classes list={classes.list} claims={list} />}
    </section>
  );
}

function Claims({ list, used, snapshotType }: { list: Claim[]; used?: Map<string, number>; snapshotType?: Resource }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Claims">
      <table class="simple claims">
        <thead><tr><th>Claim</th><th>Status</th><th>Volume</th><th>Class</th><th>Pods</th>{snapshotType && <th>Snapshots</th>}<th>Capacity</th></tr></thead>
        <tbody>
          {list.map((c) => {
            const bytesUsed = used?.get(`${c.namespace}/${c.name}`);
            return (
              <tr key={c.id}>
                <td><a href={pageOf(claimType, c.namespace, c.name)}>{c.name}</a><div class="muted small">{c.namespace}</div></td>
                <td><Status text={c.status} />{c.problem && <div class="small">{c.problem}</div>}</td>
                <td>{c.volume && <a href={pageOf(volumeType, "", c.volume)}>{c.volume}</a>}</td>
                <td>{c.class ? <a href={pageOf(classType, "", c.className)}>{c.className}</a> : c.className}</td>
                <td>{c.pods.length === 0 ? <span class="muted">none</span> : c.pods.map((p) => <div key={p}><a href={pageOf(podType, c.namespace, p)}>{p}</a></div>)}</td>
                {snapshotType && <td>{c.snapshots.map((s) => <div key={s.metadata.uid}><a href={pageOf(snapshotType, c.namespace, s.metadata.name)}>{s.metadata.name}</a>{!s.status?.readyToUse && " (not ready)"}</div>)}</td>}
                <td>
                  {bytesUsed === undefined ? bytes(c.capacity) : <Meter label="Used" used={bytesUsed} total={c.capacity} text={`${bytes(bytesUsed)} of ${bytes(c.capacity)}`} />}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function Volumes({ list }: { list: any[] }) {
  return (
    <>
      <h2>Volumes without a claim on this page</h2>
      <div class="scroll" tabIndex={0} role="group" aria-label="Volumes">
        <table class="simple">
          <thead><tr><th>Volume</th><th>Status</th><th>Former claim</th><th>Class</th><th>Capacity</th></tr></thead>
          <tbody>
            {list.map((v) => (
              <tr key={v.metadata.uid}>
                <td><a href={pageOf(volumeType, "", v.metadata.name)}>{v.metadata.name}</a></td>
                <td><Status text={v.status?.phase ?? "Pending"} /> <span class="small">{volumeProblem(v)}</span></td>
                <td>{v.spec.claimRef && `${v.spec.claimRef.namespace}/${v.spec.claimRef.name}`}</td>
                <td>{v.spec.storageClassName}</td><td>{bytes(quantity(v.spec.capacity?.storage))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Classes({ list, claims }: { list: any[]; claims: Claim[] }) {
  return (
    <>
      <h2>Classes</h2>
      <div class="scroll" tabIndex={0} role="group" aria-label="Classes">
        <table class="simple">
          <thead><tr><th>Class</th><th>Provisioner</th><th>Volumes are created</th><th>Volumes of deleted claims</th><th>Claims</th></tr></thead>
          <tbody>
            {list.map((c) => (
              <tr key={c.metadata.uid}>
                <td><a href={pageOf(classType, "", c.metadata.name)}>{c.metadata.name}</a>{isDefault(c) && " (default)"}</td>
                <td>{c.provisioner}</td>
                <td>{c.volumeBindingMode === "WaitForFirstConsumer" ? "for the first pod" : "immediately"}</td>
                <td>{c.reclaimPolicy === "Retain" ? "are kept" : "are deleted"}</td>
                <td>{claims.filter((one) => one.className === c.metadata.name).length}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
