// The types of objects that the API server serves.
import { get } from "./api";

/** Resource is a type of objects. */
export interface Resource {
  group: string;
  version: string;
  plural: string;
  singular: string;
  kind: string;
  namespaced: boolean;
  verbs: string[];
  shortNames: string[];
  subresources: string[];
}

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

let loaded: Promise<Resource[]> | undefined;

/** resources returns all types, in the preferred version of each group. */
export function resources(): Promise<Resource[]> {
  loaded ??= load().catch((err) => {
    loaded = undefined;
    throw err;
  });
  return loaded;
}

/** forgetResources makes the next call of resources load them. */
export function forgetResources(): void {
  loaded = undefined;
}

async function load(): Promise<Resource[]> {
  const lists = await Promise.all(["/api", "/apis"].map((path) => get(path, aggregated)));
  if (lists.some((list) => list.kind !== "APIGroupDiscoveryList")) return loadOld();
  const found = new Map<string, Resource>();
  for (const list of lists) {
    for (const item of list.items ?? []) {
      for (const version of item.versions ?? []) {
        for (const r of version.resources ?? []) {
          const group = item.metadata?.name ?? "";
          const key = group + "/" + r.resource;
          if (found.has(key) || !r.responseKind) continue; // versions are in the order of preference
          found.set(key, {
            group,
            version: version.version,
            plural: r.resource,
            singular: r.singularResource,
            kind: r.responseKind.kind,
            namespaced: r.scope === "Namespaced",
            verbs: r.verbs ?? [],
            shortNames: r.shortNames ?? [],
            subresources: (r.subresources ?? []).map((s: any) => s.subresource),
          });
        }
      }
    }
  }
  return [...found.values()].filter((r) => r.verbs.includes("list"));
}

/** loadOld loads the types of servers without aggregated discovery. */
async function loadOld(): Promise<Resource[]> {
  const groups = await get("/apis");
  const versions: [string, string, string][] = [["", "v1", "/api/v1"]];
  for (const g of groups.groups ?? []) {
    versions.push([g.name, g.preferredVersion.version, "/apis/" + g.preferredVersion.groupVersion]);
  }
  const lists = await Promise.all(
    versions.map(async ([group, version, path]) => {
      const list = await get(path).catch(() => ({ resources: [] }));
      const all: any[] = list.resources ?? [];
      return all
        .filter((r) => !r.name.includes("/") && r.verbs?.includes("list"))
        .map((r): Resource => ({
          group,
          version,
          plural: r.name,
          singular: r.singularName,
          kind: r.kind,
          namespaced: r.namespaced,
          verbs: r.verbs,
          shortNames: r.shortNames ?? [],
          subresources: all.filter((s) => s.name.startsWith(r.name + "/")).map((s) => s.name.slice(r.name.length + 1)),
        }));
    }),
  );
  return lists.flat();
}

/** TypeRef identifies a type. */
export type TypeRef = Pick<Resource, "group" | "version" | "plural">;

/** collectionPath returns the path of the objects of a type, in all namespaces if namespace is empty. */
export function collectionPath(r: TypeRef, namespace = ""): string {
  const base = r.group ? `/apis/${r.group}/${r.version}` : `/api/${r.version}`;
  return (namespace ? `${base}/namespaces/${namespace}` : base) + "/" + r.plural;
}

/** objectPath returns the path of an object. */
export function objectPath(r: TypeRef, namespace: string, name: string): string {
  return collectionPath(r, namespace) + "/" + encodeURIComponent(name);
}

/** pagePath returns the address of the page of a type. */
export function pagePath(r: TypeRef): string {
  return `/r/${r.group || "core"}/${r.version}/${r.plural}`;
}

/** pageOf returns the address of the page of an object. */
export function pageOf(r: TypeRef, namespace: string | undefined, name: string): string {
  return `${pagePath(r)}/${namespace || "-"}/${encodeURIComponent(name)}`;
}

/** ofKind returns the type of a kind. apiVersion is GROUP/VERSION. */
export function ofKind(all: Resource[], apiVersion: string, kind: string): Resource | undefined {
  const group = apiVersion.includes("/") ? apiVersion.split("/")[0] : "";
  return all.find((r) => r.kind === kind && r.group === group);
}

export const pods: TypeRef = { group: "", version: "v1", plural: "pods" };
export const nodes: TypeRef = { group: "", version: "v1", plural: "nodes" };
export const events: TypeRef = { group: "", version: "v1", plural: "events" };
