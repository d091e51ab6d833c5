// The access review: what a user may do.
import { useState } from "preact/hooks";
import { get, send } from "./api";
import { Loading, Problem, useLoad } from "./ui";

interface Rule {
  verbs: string[];
  apiGroups?: string[];
  resources?: string[];
  resourceNames?: string[];
}

export function AccessPage({ namespace }: { namespace: string }) {
  const ns = namespace || "default";
  const self = useLoad("self", () => send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" }));
  const rules = useLoad(ns, () => send("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", { apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectRulesReview", spec: { namespace: ns } }));
  const user = self.value?.status?.userInfo;
  const list: Rule[] = rules.value?.status?.resourceRules ?? [];
  return (
    <section class="page">
      <header class="page-head"><h1>Access review</h1></header>
      {self.error ? <Problem error={self.error} /> : user ? <p>You are <strong>{user.username}</strong>, in the groups {(user.groups ?? []).join(", ")}.</p> : <Loading rows={1} />}
      <h2>Who can</h2>
      <WhoCan namespace={ns} />
      <h2>What you can do in namespace {ns}</h2>
      {rules.error ? <Problem error={rules.error} onRetry={rules.reload} /> : !rules.value ? <Loading /> : (
        <div class="scroll" tabIndex={0}>
          <table class="simple">
            <thead><tr><th>Resources</th><th>Groups</th><th>Verbs</th><th>Names</th></tr></thead>
            <tbody>{list.map((r, i) => <tr key={i}><td>{r.resources?.join(", ")}</td><td>{r.apiGroups?.map((g) => g || "core").join(", ")}</td><td>{r.verbs.join(", ")}</td><td>{r.resourceNames?.join(", ")}</td></tr>)}</tbody>
          </table>
        </div>
      )}
      {rules.value?.status?.incomplete && <p class="notice warn">The list is incomplete: {rules.value.status.evaluationError}</p>}
    </section>
  );
}

interface Subject {
  kind: string;
  name: string;
  namespace?: string;
  through: string;
}

/** whoCan returns the subjects to which RBAC grants a verb on a resource in a namespace. */
async function whoCan(verb: string, resource: string, group: string, namespace: string): Promise<Subject[]> {
  const base = "/apis/rbac.authorization.k8s.io/v1";
  const [clusterRoles, clusterBindings, roles, bindings] = await Promise.all(
    [`${base}/clusterroles`, `${base}/clusterrolebindings`, `${base}/namespaces/${namespace}/roles`, `${base}/namespaces/${namespace}/rolebindings`].map((p) => get(p)),
  );
  const has = (list: string[] | undefined, want: string) => !!list && (list.includes("*") || list.includes(want));
  const grants = (role: any) => (role.rules ?? []).some((r: Rule) => has(r.verbs, verb) && has(r.resources, resource) && has(r.apiGroups, group));
  const granting = new Set<string>();
  for (const r of clusterRoles.items) if (grants(r)) granting.add("ClusterRole/" + r.metadata.name);
  for (const r of roles.items) if (grants(r)) granting.add("Role/" + r.metadata.name);
  const found: Subject[] = [];
  for (const [b, kind] of [...clusterBindings.items.map((b: any) => [b, "ClusterRoleBinding"]), ...bindings.items.map((b: any) => [b, "RoleBinding"])]) {
    if (!granting.has(b.roleRef.kind + "/" + b.roleRef.name)) continue;
    for (const s of b.subjects ?? []) found.push({ kind: s.kind, name: s.name, namespace: s.namespace, through: `${kind} ${b.metadata.name}, ${b.roleRef.kind} ${b.roleRef.name}` });
  }
  return found;
}

function WhoCan({ namespace }: { namespace: string }) {
  const [result, setResult] = useState<Subject[]>();
  const [error, setError] = useState<unknown>();
  const submit = async (e: Event) => {
    e.preventDefault();
    const form = new FormData(e.currentTarget as HTMLFormElement);
    const [resource, ...group] = (form.get("resource") as string).trim().split(".");
    setError(undefined);
    try {
      setResult(await whoCan(form.get("verb") as string, resource, group.join("."), namespace));
    } catch (err) {
      setError(err);
    }
  };
  return (
    <>
      <form class="toolbar" onSubmit={submit}>
        <label class="inline">Verb<select name="verb">{["get", "list", "watch", "create", "update", "patch", "delete"].map((v) => <option key={v}>{v}</option>)}</select></label>
        <label class="inline">Resource<input name="resource" required placeholder="secrets, or deployments.apps" /></label>
        <button class="primary">Show</button>
        <span class="muted">in namespace {namespace}</span>
      </form>
      {error ? <Problem error={error} /> : null}
      {result && (result.length === 0 ? <p>RBAC grants it to no subject.</p> : (
        <div class="scroll" tabIndex={0}>
          <table class="simple">
            <thead><tr><th>Subject</th><th>Kind</th><th>Through</th></tr></thead>
            <tbody>{result.map((s, i) => <tr key={i}><td>{s.namespace && s.namespace + "/"}{s.name}</td><td>{s.kind}</td><td>{s.through}</td></tr>)}</tbody>
          </table>
        </div>
      ))}
      {result && <p class="muted">From the RBAC objects. Rules that are limited to names count as well. Other authorizers are not considered.</p>}
    </>
  );
}
